"""What C code and child processes write to the file that is this process's standard output or error.

Only where that is a regular file, as with `> log` and under Slurm: it is read where it grows, and nothing is changed
for those who write to it. What Python's streams wrote is in there too and is known already, so that is left out. A
terminal or a pipe cannot be read by a second reader, and a pipe or a process in between could hold up the training:
what C code and child processes write there is not kept.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections import Counter
from contextlib import suppress
from typing import Final

from toolkit.runfolder.portable import pread
from toolkit.runfolder.safefile import identity_of
from toolkit.telemetry.printed.screen import without_controls

_MOST_A_TIME: Final = 1 << 20
_MOST_BEHIND: Final = 8 << 20
_MOST_EXPECTED: Final = 20_000
_LONGEST_MIX: Final = 1_000
_END: Final = re.compile(r"[\r\n]")


class FilesBeside:
    """The regular files among the descriptors 1 and 2, read from where they are now."""

    def __init__(self) -> None:
        self._expected: Counter[str] = Counter()
        """Lines of Python's that will be, or are, in the files."""
        self._begun: dict[int, str] = {}
        self._files: dict[tuple[int, int], _GrowingFile] = {}
        for number in (1, 2):
            with suppress(OSError):
                status = os.fstat(number)
                if stat.S_ISREG(status.st_mode) and identity_of(status) not in self._files:
                    self._files[identity_of(status)] = _GrowingFile(number)
        if self._files:
            for stream in (sys.stdout, sys.stderr):
                # What was printed before now is not ours to tell.
                with suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            self.skip()
            self.take_passed_over()

    def leave_out(self, identity: tuple[int, int]) -> None:
        """Do not read this file: it is the log itself."""
        self._files.pop(identity, None)

    def look(self) -> bool:
        """Note how far to read: what Python writes from now on is not expected yet. Return whether there is any."""
        found = [file.look() for file in self._files.values()]
        return any(found)

    def expect(self, number: int, text: str) -> None:
        """Leave out what was written to a stream of Python's."""
        if self._files:
            *whole, begun = _END.split(self._begun.pop(number, "") + text)
            if begun:
                self._begun[number] = begun
            for line in whole:
                self._expected[without_controls(line).strip()] += 1
            while len(self._expected) > _MOST_EXPECTED:
                del self._expected[next(iter(self._expected))]

    def read(self, *, is_end: bool = False) -> list[str]:
        """Return the lines of others, up to where `look` was; at the end also one that is not complete."""
        found = [line for file in self._files.values() for line in file.read(is_end=is_end)]
        shown = [without_controls(line) for line in found]
        return [line for line in shown if line.strip() and not self._is_expected(line.strip())]

    def skip(self) -> None:
        """Pass over what is there: so much was printed that it is not looked at."""
        for file in self._files.values():
            file.skip()

    def take_passed_over(self) -> int:
        """Return how many bytes were passed over since the last call, of Python's streams and of others."""
        passed = sum(file.passed_over for file in self._files.values())
        for file in self._files.values():
            file.passed_over = 0
        return passed

    def _is_expected(self, line: str) -> bool:
        if self._take(line):
            return True
        # A bar on standard error and a line on standard output share a line of the file.
        return len(line) <= _LONGEST_MIX and any(
            self._has(line[:at].strip()) and self._has(line[at:].strip()) for at in range(1, len(line))
        )

    def _take(self, line: str) -> bool:
        if self._expected.get(line, 0) > 0:
            self._expected[line] -= 1
            if not self._expected[line]:
                del self._expected[line]
            return True
        return self._is_begun(line)

    def _has(self, line: str) -> bool:
        return not line or line in self._expected or self._is_begun(line)

    def _is_begun(self, line: str) -> bool:
        return any(without_controls(begun).strip() == line for begun in self._begun.values())


class _GrowingFile:
    """A file that others append to. Raises OSError where it cannot be read."""

    def __init__(self, number: int) -> None:
        # Linux only: elsewhere this fails, or shares the position of those who write.
        self._path = f"/proc/self/fd/{number}"
        os.close(os.open(self._path, os.O_RDONLY))
        self._identity = identity_of(os.stat(self._path))
        self._at = self._upto = self.passed_over = 0
        self._rest = b""

    def look(self) -> bool:
        """Note its size."""
        status = os.stat(self._path)
        # The script may have put something else in its place.
        self._upto = status.st_size if identity_of(status) == self._identity else self._at
        if self._upto < self._at or self._upto - self._at > _MOST_BEHIND:
            self.skip()
        return self._upto > self._at

    def skip(self) -> None:
        """Go to its end."""
        status = os.stat(self._path)
        if identity_of(status) == self._identity:
            self.passed_over += max(0, status.st_size - self._at)
            self._at = self._upto = status.st_size
            self._rest = b""

    def read(self, *, is_end: bool) -> list[str]:
        """Return its next lines."""
        data = b""
        if self._upto > self._at:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = pread(descriptor, min(self._upto - self._at, _MOST_A_TIME), self._at)
            finally:
                os.close(descriptor)
        self._at += len(data)
        *lines, self._rest = re.split(rb"[\r\n]", self._rest + data)
        if is_end or len(self._rest) > _MOST_A_TIME:
            lines.append(self._rest)
            self._rest = b""
        return [line.decode("utf-8", "replace") for line in lines]
