"""One file per subcommand; `SUBCOMMANDS` in `toolkit/telemetry/cli/main.py` lists them."""
