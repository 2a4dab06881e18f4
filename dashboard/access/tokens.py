"""Access tokens: how they are made and checked, and the cookie that replaces one."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from .roles import Role

MINIMUM_LENGTH = 24
_MINIMUM_VARIETY = 8


class TokenError(ValueError):
    """A token is too easy to guess; the message says where it came from, and never shows it."""


def new_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(32)


def checked_token(text: str, source: str) -> str:
    """Return the token in `text`. Raises TokenError if it is too short, too uniform, or more than one word."""
    token = text.strip()
    if not token.isascii() or not token.isprintable() or any(character.isspace() for character in token):
        raise TokenError(f"{source} must contain one token of printable ASCII characters, without spaces")
    if len(token) < MINIMUM_LENGTH or len(set(token)) < _MINIMUM_VARIETY:
        raise TokenError(
            f"the token of {source} is too easy to guess; it needs at least {MINIMUM_LENGTH} characters, "
            f"{_MINIMUM_VARIETY} of them different. This makes one:\n"
            "  python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessTokens:
    """The tokens of one server; without one of them access is denied."""

    operator: str = field(repr=False)
    viewer: str | None = field(default=None, repr=False)
    """Gives read-only access."""

    is_fixed: bool = False
    """Whether `operator` was given, so it need not be printed; otherwise it is new at each start."""

    is_viewer_fixed: bool = False
    """Whether `viewer` was given."""

    def __post_init__(self) -> None:
        if self.viewer == self.operator:
            raise TokenError("the reader token must differ from the operator token")

    def role_of_token(self, token: str) -> Role | None:
        """Return what `token` allows, after the same time whatever it is."""
        return self._match(self._tokens(), token)

    def role_of_cookie(self, value: str, port: int) -> Role | None:
        """Return what a cookie of this server allows, after the same time whatever it is."""
        return self._match({role: self.cookie(role, port) for role in self._tokens()}, value)

    def cookie(self, role: Role, port: int) -> str:
        """Return what a browser keeps instead of the token; nothing about the token can be learned from it."""
        return hmac.digest(self._tokens()[role].encode(), f"{role.value} {port}".encode(), "sha256").hex()

    def _tokens(self) -> dict[Role, str]:
        known = {Role.OPERATOR: self.operator}
        return known if self.viewer is None else {**known, Role.VIEWER: self.viewer}

    @staticmethod
    def _match(known: dict[Role, str], given: str) -> Role | None:
        # Digests have one length and all are compared, so that the time reveals nothing about the tokens.
        digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
        matching = [
            role
            for role, value in known.items()
            if hmac.compare_digest(hashlib.sha256(value.encode()).digest(), digest)
        ]
        return matching[0] if matching else None
