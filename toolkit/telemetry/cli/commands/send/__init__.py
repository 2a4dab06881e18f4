"""Subcommands that send something to other people and machines."""
