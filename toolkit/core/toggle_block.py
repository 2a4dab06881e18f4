"""A block that true and false switch on and off as a whole, and a mapping in detail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from toolkit.core import checks

if TYPE_CHECKING:
    from typing_extensions import Self


class ToggleBlock:
    """The base of a frozen dataclass whose fields are `enabled` and those of `CHECKS`."""

    __slots__ = ()

    CHECKS: ClassVar[Mapping[str, checks.Check]]

    @classmethod
    def from_block(cls, name: str, value: bool | Mapping[str, Any] | None) -> Self:
        """Return what the block called `name` states; one that says nothing is on.

        Raises:
            OptionsError: a key or value is wrong.
        """
        if value is None or isinstance(value, bool):
            value = {"enabled": value is not False}
        return cls(**checks.block(name, value, {"enabled": checks.boolean, **cls.CHECKS}))

    @classmethod
    def check(cls, name: str, value: Any) -> None:
        """Raise `OptionsError` where the block is wrong."""
        cls.from_block(name, value)
