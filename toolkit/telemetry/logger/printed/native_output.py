"""What C code and child processes write to the file that is this process's standard output or error.

Only where that is a regular file, as with `> log` and under Slurm: it is read where it grows, and nothing is changed
for those who write to it. What Python's streams wrote is in there too and is known already, so that is left out. A
terminal or a pipe cannot be read by a second reader, and a pipe or a process in between could hold up the training:
what C code and child processes write there is not kept.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections import Counter
from contextlib import suppress
from typing import Final

from toolkit.telemetry.logger.printed.screen import without_controls
from toolkit.telemetry.runfolder.portable import pread
from toolkit.telemetry.runfolder.safefile import identity_of

_MOST_A_TIME: Final = 1 << 17
_MOST_BEHIND: Final = 8 << 20
_MOST_EXPECTED: Final = 20_000
_LONGEST_BEGUN: Final = 20_000
_END: Final = re.compile(r"[\r\n]")


class NativeOutput:
    """The regular files among the descriptors 1 and 2, read from where they are now."""

    def __init__(self) -> None:
        self._expected: Counter[str] = Counter()
        """Lines of Python's that will be, or are, in the files."""
        self._begun: dict[int, str] = {}
        self._files: dict[tuple[int, int], _GrowingFile] = {}
        for number in (1, 2):
            with suppress(OSError):
                file = _GrowingFile(number)
                self._files.setdefault(file.identity, file)
        if self._files:
            for stream in (sys.stdout, sys.stderr):
                # What was printed before now is not ours to tell.
                with suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            self.skip()

    def leave_out(self, identity: tuple[int, int]) -> None:
        """Do not read this file: it is the log itself."""
        self._files.pop(identity, None)

    def look(self) -> int:
        """Note how far to read: what Python writes from now on is not expected yet.

        Return how many bytes were passed over, as it is too much to be read.
        """
        return sum(file.look() for file in self._files.values())

    def expect(self, number: int, text: str) -> None:
        """Leave out what was written to a stream of Python's."""
        if self._files:
            *whole, begun = _END.split(self._begun.pop(number, "") + text)
            if begun:
                self._begun[number] = begun[-_LONGEST_BEGUN:]
            for line in whole:
                self._expected[without_controls(line).strip()] += 1
            while len(self._expected) > _MOST_EXPECTED:
                del self._expected[next(iter(self._expected))]

    def read(self, *, is_end: bool) -> list[str]:
        """Return some lines of others, up to where `look` was; at the end also one that is not complete."""
        found = [line for file in self._files.values() for line in file.read(is_end=is_end)]
        shown = [without_controls(line) for line in found]
        begun = {without_controls(text).strip() for text in self._begun.values()}
        return [
            line
            for line in shown
            if (key := line.strip()) and not self._is_expected(key) and key not in begun
        ]

    @property
    def has_more(self) -> bool:
        """Whether there is more to read, up to where `look` was."""
        return any(file.has_more for file in self._files.values())

    def skip(self) -> int:
        """Pass over what is there; return how many bytes that is."""
        return sum(file.skip() for file in self._files.values())

    def _is_expected(self, line: str) -> bool:
        if line not in self._expected:
            return False
        self._expected[line] -= 1
        if not self._expected[line]:
            del self._expected[line]
        return True


class _GrowingFile:
    """A regular file that others append to. Raises OSError where it cannot be read."""

    def __init__(self, number: int) -> None:
        # Linux only: elsewhere this fails, or shares the position of those who write.
        self._path = f"/proc/self/fd/{number}"
        status = os.stat(self._path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        os.close(os.open(self._path, os.O_RDONLY))
        self.identity = identity_of(status)
        self._at = self._upto = 0
        self._rest = b""

    @property
    def has_more(self) -> bool:
        """Whether there is more to read."""
        return self._upto > self._at

    def look(self) -> int:
        """Note its size, and return how much of it is passed over."""
        # The script may have closed it, or put something else in its place, perhaps for a while.
        with suppress(OSError):
            status = os.stat(self._path)
            if identity_of(status) == self.identity:
                self._upto = status.st_size
                if self._upto < self._at:
                    # It was emptied, as those do who keep logs short: all of it is new.
                    self._at, self._rest = 0, b""
        return self._pass_over() if self._upto - self._at > _MOST_BEHIND else 0

    def skip(self) -> int:
        """Go to its end."""
        return self.look() + self._pass_over()

    def _pass_over(self) -> int:
        passed, self._at, self._rest = self._upto - self._at, self._upto, b""
        return passed

    def read(self, *, is_end: bool) -> list[str]:
        """Return its next lines."""
        data = b""
        if self.has_more:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = pread(descriptor, min(self._upto - self._at, _MOST_A_TIME), self._at)
            finally:
                os.close(descriptor)
        if not data:
            self._upto = self._at
        self._at += len(data)
        *lines, self._rest = re.split(rb"[\r\n]", self._rest + data)
        if (is_end and not self.has_more) or len(self._rest) > _MOST_A_TIME:
            lines.append(self._rest)
            self._rest = b""
        return [line.decode("utf-8", "replace") for line in lines]
