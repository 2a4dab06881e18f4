"""Keeps the last lines that the script printed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from toolkit.telemetry.logger.printed.screen import Screen
from toolkit.telemetry.logger.printed.taps import StreamTaps, Write, is_forwarded
from toolkit.telemetry.privacy.masking import mask_secrets

_CHUNKS_A_LINE: Final = 20
"""Calls of `write` that are kept for each requested line: `print` makes two, and a progress bar many."""
_MOST_BYTES: Final = 2_000_000
_LONGEST_LINE: Final = 500
_SEARCHED: Final = 4_000
"""Characters of a line that are searched for secrets before it is truncated."""


class OutputTail:
    """Keeps the last `lines` lines of output, and of their writes no more than a bounded part."""

    def __init__(self, lines: int, taps: StreamTaps | None = None) -> None:
        self.lines = lines
        calls = _CHUNKS_A_LINE * lines
        self._longest = max(200, _MOST_BYTES // calls)
        self._printed: deque[Write] = deque(maxlen=calls)
        self._taps = StreamTaps() if taps is None else taps

    def follow(self) -> None:
        """Wrap the current `sys.stdout` and `sys.stderr`; earlier ones stay wrapped."""
        self._taps.join(self, self._take)

    def release(self) -> None:
        """Restore each stream's own `write`, unless someone else listens."""
        self._taps.leave(self)

    def _take(self, writes: Sequence[Write]) -> None:
        self._printed.extend((number, _end_of(text, self._longest)) for number, text in writes)

    def last_lines(self) -> list[str]:
        """Return the last lines of all streams together, as a terminal would show them, with secrets masked."""
        self._taps.hand_on()
        screens: dict[int, Screen] = {}
        lines: list[str] = []
        before: Write = (-1, "")
        for number, text in list(self._printed):
            if is_forwarded(number, text, before):
                before = (-1, "")
                continue
            before = (number, text)
            screen = screens.setdefault(number, Screen())
            screen.write(text, 0.0)
            if "\n" in text:
                lines += screen.take_done(0.0)
        for screen in screens.values():
            lines += screen.take_done(0.0, is_end=True)
        shown = [_end_of(line, _SEARCHED) for line in lines]
        wanted = mask_secrets([line for line in shown if line.strip()][-self.lines :])
        return [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in wanted]


def _end_of(text: str, longest: int) -> str:
    """Return the end of a text, beginning with a whole word, as half a secret is not recognised."""
    return text if len(text) <= longest else f"… {text[-longest:].partition(' ')[2]}"
