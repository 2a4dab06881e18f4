"""Turns command-line options into how visitors get access: freely, with a token, by login, or through a proxy."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from .login import Login, LoginError, UserHeader, read_login_file
from .secret_file import SecretFileError, read_secret_file
from .tokens import AccessTokens, TokenError, checked_token, new_token

TOKEN_VARIABLE = "TELEMETRY_DASHBOARD_TOKEN"  # noqa: S105 - its name
READER_TOKEN_VARIABLE = "TELEMETRY_DASHBOARD_READER_TOKEN"  # noqa: S105 - its name

Access: TypeAlias = AccessTokens | Login | UserHeader | None
"""None: open to everyone who reaches it."""


class AccessError(ValueError):
    """Invalid or contradicting options; the message names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """The access options of the command line."""

    require: Literal["auto", "always", "never"] = "auto"
    token_file: Path | None = None
    reader_token: bool = False
    reader_token_file: Path | None = None
    login_file: Path | None = None
    user_header: UserHeader | None = None

    def __post_init__(self) -> None:
        others = [
            name
            for name, is_given in (
                ("--token", self.require == "always"),
                ("--token-file", self.token_file is not None),
                ("--reader-token", self.reader_token),
                ("--reader-token-file", self.reader_token_file is not None),
            )
            if is_given
        ]
        ways = [*self.without_token, *others]
        if self.without_token and len(ways) > 1:
            raise AccessError(f"{ways[0]} and {ways[1]} cannot be combined; use one of them")
        if self.reader_token and self.reader_token_file is not None:
            raise AccessError("--reader-token and --reader-token-file cannot be combined; use one of them")

    @property
    def without_token(self) -> list[str]:
        """The options that are given instead of a token."""
        given = {
            "--login": self.login_file is not None,
            "--user-header": self.user_header is not None,
            "--no-token": self.require == "never",
        }
        return [name for name, is_given in given.items() if is_given]


def decide(
    options: AccessOptions, *, is_private: bool, read_only: bool, environ: MutableMapping[str, str]
) -> Access:
    """Return how visitors get access; by default a token is required if other machines can reach the dashboard.

    Tokens are removed from `environ`, so that no child process and no page finds them there.

    Raises:
        AccessError: options contradict each other, or a file or token is invalid.
    """
    given = {
        name: value for name in (TOKEN_VARIABLE, READER_TOKEN_VARIABLE) if (value := environ.pop(name, ""))
    }
    instead = options.without_token
    if given and instead:
        raise AccessError(f"{instead[0]} and {next(iter(given))} cannot be combined; use one of them")
    if options.user_header is not None or options.require == "never":
        return options.user_header
    try:
        if options.login_file is not None:
            return read_login_file(options.login_file)
        operator = _fixed(options.token_file, "--token-file", given, TOKEN_VARIABLE)
        viewer = _fixed(options.reader_token_file, "--reader-token-file", given, READER_TOKEN_VARIABLE)
        wants_viewer = options.reader_token or viewer is not None
        if read_only and wants_viewer:
            raise AccessError("with --read-only everyone is read-only, so leave out the reader token")
        if is_private and options.require == "auto" and operator is None and not wants_viewer:
            return None
        return AccessTokens(
            operator=operator or new_token(),
            viewer=viewer or (new_token() if wants_viewer else None),
            is_fixed=operator is not None,
            is_viewer_fixed=viewer is not None,
        )
    except (LoginError, SecretFileError, TokenError) as error:
        raise AccessError(str(error)) from error


def _fixed(path: Path | None, option: str, given: Mapping[str, str], variable: str) -> str | None:
    if path is not None and variable in given:
        raise AccessError(f"{option} and {variable} cannot be combined; use one of them")
    if path is not None:
        return checked_token(read_secret_file(path, option), f"{option} {str(path)!r}")
    return checked_token(given[variable], variable) if variable in given else None
