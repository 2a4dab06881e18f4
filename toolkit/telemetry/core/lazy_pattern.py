"""A regular expression that is compiled when it is first used: a run can begin without most of them."""

from __future__ import annotations

import re
from typing import Any, cast


class _LazyPattern:
    def __init__(self, source: str, flags: int) -> None:
        self._source, self._flags = source, flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._source, self._flags)
        # Found directly from now on.
        for each in ("sub", "search", "match", "fullmatch", "findall", "finditer", "split"):
            setattr(self, each, getattr(compiled, each))
        return getattr(compiled, name)


def lazy_pattern(source: str, flags: int = 0) -> re.Pattern[str]:
    """Return what `re.compile` does, without compiling it now."""
    return cast("re.Pattern[str]", _LazyPattern(source, flags))
