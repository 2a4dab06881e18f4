"""Subcommands that set something up."""
