"""Subcommands that repair, export and delete runs."""
