"""The arguments that name a ClickHouse engine, for the subcommands that use one."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.fleet.address import PASSWORD_VARIABLE, Address, address_of, read_password


def add_engine_arguments(parser: argparse.ArgumentParser, option: str) -> None:
    """Declare the address under the name `option`, the password file and the CA."""
    parser.add_argument(
        option,
        dest="engine",
        metavar="ADDRESS",
        required=True,
        help="the engine: clickhouse://USER@HOST:PORT/DATABASE; several hosts of a cluster are separated by commas",
    )
    parser.add_argument(
        "--password-file",
        metavar="FILE",
        type=Path,
        help=f"file with the password, readable by you alone (default: the variable {PASSWORD_VARIABLE})",
    )
    parser.add_argument(
        "--ca",
        metavar="FILE",
        type=Path,
        help="CA that signed the engine's certificate (default: the system's)",
    )


def chosen_engine(args: argparse.Namespace) -> Address:
    """Return the address that was given.

    Raises:
        AddressError: it, or the password file, is invalid.
    """
    return address_of(args.engine, password=read_password(args.password_file), ca=args.ca)
