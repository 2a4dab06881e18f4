"""The arguments that name a ClickHouse engine and where files are stored, for the subcommands that use them."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.fleet.address import PASSWORD_VARIABLE, Address, address_of, read_password
from toolkit.fleet.object_store import FORMS, ObjectStore, object_store


def add_engine_arguments(parser: argparse.ArgumentParser, option: str, *, required: bool = True) -> None:
    """Declare the address under the name `option`, the password file and the CA."""
    parser.add_argument(
        option,
        dest="engine",
        metavar="ADDRESS",
        required=required,
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


def add_objects_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare where sample images and other files are stored."""
    parser.add_argument(
        "--objects",
        metavar="PLACE",
        default="none",
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
    return None if args.objects == "none" else object_store(args.objects, args.objects_endpoint)
