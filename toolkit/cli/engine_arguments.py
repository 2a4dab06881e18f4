"""The arguments that name a ClickHouse engine and where files are stored, for the subcommands that use them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from toolkit.cli.chosen_run import printable
from toolkit.fleet.address import PASSWORD_VARIABLE, Address, AddressError, address_of, read_password
from toolkit.fleet.fleet_file import VARIABLE, fill_in
from toolkit.fleet.object_store import FORMS, ObjectStore, object_store


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the file that has options."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help=f"options in a file, see docs/fleet.md (default: the variable {VARIABLE}, else ./fleet.toml)",
    )


def fill_in_options(args: argparse.Namespace, command: str) -> None:
    """Take the options that were not given from the variables and the file, and say which were used.

    Raises:
        FleetFileError: one of them is invalid.
    """
    if sources := fill_in(args, command):
        print(printable(f"options from {sources}"), file=sys.stderr)


def add_engine_arguments(parser: argparse.ArgumentParser, option: str) -> None:
    """Declare the file with options, the address under the name `option`, the password file and the CA."""
    add_config_argument(parser)
    parser.add_argument(
        option,
        dest="engine",
        metavar="ADDRESS",
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
        AddressError: there is none, or it, or the password file, is invalid.
    """
    if args.engine is None:
        raise AddressError(
            "which engine? clickhouse://USER@HOST:PORT/DATABASE as an option (see --help), "
            f"as engine in fleet.toml or in the variable {VARIABLE}_ENGINE"
        )
    return address_of(args.engine, password=read_password(args.password_file), ca=args.ca)


def add_objects_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare where sample images and other files are stored."""
    parser.add_argument(
        "--objects",
        metavar="PLACE",
        help=f"{what}: {FORMS}, or none (default: none); keys come from the AWS_* variables or ~/.aws",
    )
    parser.add_argument(
        "--objects-endpoint",
        metavar="URL",
        help="S3 server other than Amazon's: https://HOST:PORT (default: the variable AWS_ENDPOINT_URL)",
    )


def chosen_objects(args: argparse.Namespace) -> ObjectStore | None:
    """Return the store that was given, None if there is none.

    Raises:
        PlaceError: it is invalid.
    """
    return None if args.objects in (None, "none") else object_store(args.objects, args.objects_endpoint)
