"""Tokens that open the dashboard: how they are made and checked, and the cookie that stands for one."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from dashboard.access.roles import Rights

MINIMUM_LENGTH = 24
_MINIMUM_VARIETY = 8


class TokenError(ValueError):
    """A token is one that somebody could guess; the message says where it came from, and never what it is."""


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(32)


def checked_token(text: str, source: str) -> str:
    """Return `text`, which `source` names, without the line end of its file.

    Raises:
        TokenError: it is too short, too plain, or more than one word.
    """
    token = text.strip()
    if not token.isascii() or not token.isprintable() or any(character.isspace() for character in token):
        raise TokenError(f"{source} must hold one token of printable ASCII characters, without spaces")
    if len(token) < MINIMUM_LENGTH or len(set(token)) < _MINIMUM_VARIETY:
        raise TokenError(
            f"the token of {source} is too easy to guess; at least {MINIMUM_LENGTH} characters, "
            f"{_MINIMUM_VARIETY} of them different, are needed. This makes a good one:\n"
            "  python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The tokens of one server; without any of them nobody comes in."""

    steer: str = field(repr=False)
    look: str | None = field(default=None, repr=False)
    """Who comes with this one may only look."""

    is_fixed: bool = False
    """Whether `steer` was given, and so is known without being printed; else it is new at each start."""

    is_look_fixed: bool = False
    """The same of `look`."""

    def __post_init__(self) -> None:
        if self.look == self.steer:
            raise TokenError("the token for readers must be another one than the token that may steer")

    def rights_of_token(self, token: str) -> Rights | None:
        """Return what `token` allows, after the same time whatever it is."""
        return self._match(self._tokens(), token)

    def rights_of_cookie(self, value: str, port: int) -> Rights | None:
        """Return what a cookie of this server allows, after the same time whatever it is."""
        return self._match({rights: self.cookie(rights, port) for rights in self._tokens()}, value)

    def cookie(self, rights: Rights, port: int) -> str:
        """Return what a browser keeps instead of the token; nothing about the token can be learned from it."""
        return hmac.digest(self._tokens()[rights].encode(), f"{rights.value} {port}".encode(), "sha256").hex()

    def _tokens(self) -> dict[Rights, str]:
        known = {Rights.STEER: self.steer}
        return known if self.look is None else {**known, Rights.LOOK: self.look}

    @staticmethod
    def _match(known: dict[Rights, str], given: str) -> Rights | None:
        # Digests have one length, and every one is compared: the time tells neither how much was right nor of which.
        digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
        matching = [
            rights
            for rights, value in known.items()
            if hmac.compare_digest(hashlib.sha256(value.encode()).digest(), digest)
        ]
        return matching[0] if matching else None
