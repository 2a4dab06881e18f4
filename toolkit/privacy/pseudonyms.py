"""The same private text under the same made-up name, so that what was redacted can still be told apart."""

from __future__ import annotations

import hashlib
import re
from typing import Final

_MOST: Final = 200_000
"""Different texts of a kind that get a number each; all beyond share one name."""

PLACEHOLDER = re.compile(r"<(?:path|user|host|email|phone|ip|mac|device|model|url)(?:-[0-9]{1,6})?>")


class Pseudonyms:
    """Numbers private texts in the order in which they come: `<path-1>`, `<path-2>`, `<user-1>`."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[bytes, int]] = {}

    def name_for(self, kind: str, text: str) -> str:
        """Return what stands for `text` from now on."""
        numbers = self._numbers.setdefault(kind, {})
        # Their digests, so that a long run with long paths takes no more memory than one with short ones.
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
        number = numbers.get(digest)
        if number is None:
            if len(numbers) >= _MOST:
                return f"<{kind}>"
            number = numbers[digest] = len(numbers) + 1
        return f"<{kind}-{number}>"
