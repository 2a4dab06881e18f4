"""Subcommands that show runs."""
