"""Which logged-in users get access, and with which role."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dashboard.access.roles import Role

UNNAMED_PROVIDER = "default"
"""Streamlit's name for the provider if there is only one."""

_BY_SUBJECT = "sub:"


class AllowListError(ValueError):
    """The list has an invalid entry; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowList:
    """Users with access: `name@example.org`, everyone `@example.org`, or the provider's id for them.

    An id is `sub:ID` with one provider, and `sub:NAME:ID` with named providers.
    """

    operators: tuple[str, ...] = ()
    viewers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.operators and not self.viewers:
            raise AllowListError(
                "the list is empty: name at least one address in `allow` or `readers`, "
                "or everyone with an account at the provider would have access"
            )
        for entry in (*self.operators, *self.viewers):
            _check(entry)

    def check_providers(self, names: Collection[str]) -> None:
        """Raise `AllowListError` if an entry by id does not name one of the providers `names`."""
        prefixes = tuple(f"{_BY_SUBJECT}{name}:" for name in names)
        for entry in (*self.operators, *self.viewers):
            if prefixes and entry.startswith(_BY_SUBJECT) and not entry.startswith(prefixes):
                raise AllowListError(
                    f"{entry!r} does not name its provider; write {' or '.join(f'{one}ID' for one in prefixes)}"
                )

    def role_of(self, claims: Mapping[str, object]) -> Role | None:
        """Return the role of a user with these ID token claims; None denies access.

        An email address counts only if the provider says it is verified.
        The more specific entry wins: a viewer in a domain of operators is a viewer.
        """
        if claims.get("is_logged_in") is not True:
            return None
        for names in _names(claims):
            if names & {_lower(entry) for entry in self.viewers}:
                return Role.VIEWER
            if names & {_lower(entry) for entry in self.operators}:
                return Role.OPERATOR
        return None


def entry_by_id(claims: Mapping[str, object]) -> str | None:
    """Return the list entry for a user with these claims, by the provider's id."""
    subject, provider = claims.get("sub"), claims.get("provider")
    if not isinstance(subject, str) or not subject:
        return None
    # An id is unique at one provider only; at another, someone else may have it or choose it.
    named = f"{provider}:" if provider not in (None, UNNAMED_PROVIDER) else ""
    return f"{_BY_SUBJECT}{named}{subject}"


def _names(claims: Mapping[str, object]) -> Sequence[set[str]]:
    """Return the entries that match a user, the most specific first."""
    exact, wide = set(), set()
    by_id = entry_by_id(claims)
    if by_id is not None:
        exact.add(by_id)
    address = claims.get("email")
    # With some providers users can put any address into their profile.
    if claims.get("email_verified") is True and isinstance(address, str):
        name, _, domain = address.rpartition("@")
        # With a second @, two programs may see two different domains; and an address is never an id.
        if name and domain and "@" not in name and not address.startswith(_BY_SUBJECT):
            exact.add(_lower(address))
            wide.add(_lower(f"@{domain}"))
    return exact, wide


def _lower(entry: str) -> str:
    # An id is compared exactly. Beyond ASCII, several letters have the same lower case.
    return entry.lower() if entry.isascii() and not entry.startswith(_BY_SUBJECT) else entry


def _check(entry: str) -> None:
    if entry.startswith(_BY_SUBJECT) and len(entry) > len(_BY_SUBJECT):
        return
    name, at, domain = entry.rpartition("@")
    if not at or not domain or "@" in name or any(character.isspace() for character in entry) or "*" in entry:
        raise AllowListError(
            f"{entry!r} is not a valid entry; write 'name@example.org', '@example.org' for the whole domain, "
            "or 'sub:ID'"
        )
