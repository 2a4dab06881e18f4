"""Subcommands that compare runs, report on them, and ask something of them."""
