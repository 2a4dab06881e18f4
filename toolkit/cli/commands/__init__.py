"""One file per subcommand; `SUBCOMMANDS` in `toolkit/cli/main.py` lists them."""
