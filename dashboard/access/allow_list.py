"""Who of those that an identity provider vouches for is let in, and who of them may only look."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dashboard.access.roles import Rights

UNNAMED_PROVIDER = "default"
"""What Streamlit calls the provider of a file with only one."""

_BY_SUBJECT = "sub:"


class GuestListError(ValueError):
    """The list has an entry that can stand for nobody; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestList:
    """The people who may come in: `name@example.org`, everyone `@example.org`, or by the provider's own id.

    That is `sub:ID` where there is one provider, and `sub:NAME:ID` where they have names.
    """

    steer: tuple[str, ...] = ()
    look: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.steer and not self.look:
            raise GuestListError(
                "nobody is on the list: name at least one address in `allow` or `readers`, "
                "or everyone with an account there could come in"
            )
        for entry in (*self.steer, *self.look):
            _check(entry)

    def check_providers(self, names: Collection[str]) -> None:
        """Raise `GuestListError` where an entry by id does not say which of the providers `names` gave it."""
        beginnings = tuple(f"{_BY_SUBJECT}{name}:" for name in names)
        for entry in (*self.steer, *self.look):
            if beginnings and entry.startswith(_BY_SUBJECT) and not entry.startswith(beginnings):
                raise GuestListError(
                    f"{entry!r} does not say whose id it is; {' or '.join(f'{one}ID' for one in beginnings)} does"
                )

    def rights_of(self, claims: Mapping[str, object]) -> Rights | None:
        """Return what somebody with these claims of an ID token may do; None lets nobody in.

        A mail address counts only where the provider says that it has been verified.
        The more exact entry decides: a reader of a domain whose members may steer only looks.
        """
        if claims.get("is_logged_in") is not True:
            return None
        for names in _names(claims):
            if names & {_lower(entry) for entry in self.look}:
                return Rights.LOOK
            if names & {_lower(entry) for entry in self.steer}:
                return Rights.STEER
        return None


def entry_by_id(claims: Mapping[str, object]) -> str | None:
    """Return how somebody with these claims is listed by the id that their provider gave them."""
    subject, provider = claims.get("sub"), claims.get("provider")
    if not isinstance(subject, str) or not subject:
        return None
    # An id is one person's at one provider only; at the next one somebody else may have it, or choose it.
    named = f"{provider}:" if provider not in (None, UNNAMED_PROVIDER) else ""
    return f"{_BY_SUBJECT}{named}{subject}"


def _names(claims: Mapping[str, object]) -> Sequence[set[str]]:
    """Return what somebody can be listed as, the most exact first."""
    exact, wide = set(), set()
    by_id = entry_by_id(claims)
    if by_id is not None:
        exact.add(by_id)
    address = claims.get("email")
    # At some providers people write any address they like into their profile.
    if claims.get("email_verified") is True and isinstance(address, str):
        name, _, domain = address.rpartition("@")
        # With a second @ in it, two programs may read two domains out of it; and no address is an id.
        if name and domain and "@" not in name and not address.startswith(_BY_SUBJECT):
            exact.add(_lower(address))
            wide.add(_lower(f"@{domain}"))
    return exact, wide


def _lower(entry: str) -> str:
    # An ID is exact. Beyond ASCII several letters become one and the same in lower case.
    return entry.lower() if entry.isascii() and not entry.startswith(_BY_SUBJECT) else entry


def _check(entry: str) -> None:
    if entry.startswith(_BY_SUBJECT) and len(entry) > len(_BY_SUBJECT):
        return
    name, at, domain = entry.rpartition("@")
    if not at or not domain or "@" in name or any(character.isspace() for character in entry) or "*" in entry:
        raise GuestListError(
            f"{entry!r} stands for nobody; 'name@example.org', '@example.org' for everyone there, "
            "or 'sub:ID' is allowed"
        )
