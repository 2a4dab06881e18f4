"""Consistent placeholders: the same private text always gets the same one."""

from __future__ import annotations

import hashlib
import re
from typing import Final

_MOST: Final = 200_000
"""Texts of a kind that get a number each; all others share one placeholder."""

PLACEHOLDER = re.compile(r"<(?:path|user|host|email|phone|ip|mac|device|model|url)(?:-[0-9]{1,6})?>")


class Pseudonyms:
    """Numbers private texts in their order of appearance: `<path-1>`, `<path-2>`, `<user-1>`."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[bytes, int]] = {}

    def name_for(self, kind: str, text: str) -> str:
        """Return the placeholder for `text`."""
        numbers = self._numbers.setdefault(kind, {})
        # Digests, so that long paths take no more memory than short ones.
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
        number = numbers.get(digest)
        if number is None:
            if len(numbers) >= _MOST:
                return f"<{kind}>"
            number = numbers[digest] = len(numbers) + 1
        return f"<{kind}-{number}>"
