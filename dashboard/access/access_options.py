"""From what was asked for at the start to how people come in: freely, with a token, or by logging in."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from dashboard.access.login_file import Login, LoginFileError, read_login_file
from dashboard.access.secret_file import SecretFileError, read_secret_file
from dashboard.access.tokens import Keys, TokenError, checked_token, new_token

TOKEN_VARIABLE = "TELEMETRY_DASHBOARD_TOKEN"  # noqa: S105 - the name of it
READER_TOKEN_VARIABLE = "TELEMETRY_DASHBOARD_READER_TOKEN"  # noqa: S105 - the name of it

Access: TypeAlias = Keys | Login | None
"""None stands for a dashboard that asks nobody who they are."""


class AccessError(ValueError):
    """What was asked for cannot be followed, or not together; the message names the options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessWishes:
    """What the command line says about who may come in."""

    asks: Literal["where needed", "always", "never"] = "where needed"
    token_file: Path | None = None
    reader_token: bool = False
    reader_token_file: Path | None = None
    login_file: Path | None = None

    def __post_init__(self) -> None:
        others = [
            name
            for name, is_given in (
                ("--token", self.asks == "always"),
                ("--token-file", self.token_file is not None),
                ("--reader-token", self.reader_token),
                ("--reader-token-file", self.reader_token_file is not None),
            )
            if is_given
        ]
        if self.asks == "never" and others:
            raise AccessError(f"--no-token and {others[0]} contradict each other; one of them is allowed")
        if self.login_file is not None and (others or self.asks == "never"):
            raise AccessError(
                f"--login and {others[0] if others else '--no-token'} cannot be had together: "
                "who comes in is decided by one or the other"
            )
        if self.reader_token and self.reader_token_file is not None:
            raise AccessError(
                "--reader-token makes a token, --reader-token-file brings one; one of them is allowed"
            )


def decide(
    wishes: AccessWishes, *, is_private: bool, read_only: bool, environ: MutableMapping[str, str]
) -> Access:
    """Return how people come in; a token is asked for wherever more than this machine can reach the dashboard.

    Tokens that `environ` holds are taken out of it, so that no child and no page finds them there.

    Raises:
        AccessError: options contradict each other, or a file or token cannot be taken.
    """
    given = {
        name: value for name in (TOKEN_VARIABLE, READER_TOKEN_VARIABLE) if (value := environ.pop(name, ""))
    }
    if given and (wishes.login_file is not None or wishes.asks == "never"):
        option = "--no-token" if wishes.login_file is None else "--login"
        raise AccessError(f"{option} and {next(iter(given))} contradict each other; one of them is allowed")
    if wishes.login_file is not None:
        try:
            return read_login_file(wishes.login_file)
        except LoginFileError as error:
            raise AccessError(str(error)) from error
    if wishes.asks == "never":
        return None
    try:
        steer = _fixed(wishes.token_file, "--token-file", given, TOKEN_VARIABLE)
        look = _fixed(wishes.reader_token_file, "--reader-token-file", given, READER_TOKEN_VARIABLE)
        wants_reader = wishes.reader_token or look is not None
        if read_only and wants_reader:
            raise AccessError(
                "with --read-only nobody may steer, so a token for readers has no use; leave it out"
            )
        if is_private and wishes.asks == "where needed" and steer is None and not wants_reader:
            return None
        return Keys(
            steer=steer or new_token(),
            look=look or (new_token() if wants_reader else None),
            is_fixed=steer is not None,
            is_look_fixed=look is not None,
        )
    except (SecretFileError, TokenError) as error:
        raise AccessError(str(error)) from error


def without_tokens(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` as another program may have it."""
    return {
        name: value for name, value in environ.items() if name not in (TOKEN_VARIABLE, READER_TOKEN_VARIABLE)
    }


def _fixed(path: Path | None, option: str, given: Mapping[str, str], variable: str) -> str | None:
    if path is not None and variable in given:
        raise AccessError(f"{option} and {variable} both bring a token; one of them is allowed")
    if path is not None:
        return checked_token(read_secret_file(path, option), f"{option} {str(path)!r}")
    return checked_token(given[variable], variable) if variable in given else None
