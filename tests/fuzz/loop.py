"""A small coverage-guided fuzzer in plain Python.

It keeps an input that reaches a line of the watched modules which no input reached before, and mutates what it has
kept. It needs no compiler, which fuzzers with libFuzzer do; they also see branches and comparisons, and are faster.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tests.fuzz.targets import LONGEST_INPUT, Target

Line = tuple[str, int]


@dataclass(slots=True)
class Outcome:
    """The result of a run of the fuzzer."""

    executions: int = 0
    lines: set[Line] = field(default_factory=set)
    kept: list[bytes] = field(default_factory=list)
    """Inputs that reached something new."""


class Crashed(AssertionError):
    """An input broke a promise; the reason is chained."""

    def __init__(self, target: Target, data: bytes, executions: int) -> None:
        super().__init__(f"{target.name} breaks its promise for {data!r}")
        self.data = data
        self.executions = executions


def fuzz(
    target: Target, seeds: Iterable[bytes], *, seconds: float, seed: int, most: int = sys.maxsize
) -> Outcome:
    """Run `target` on `seeds` and on mutations of them for about `seconds`, at most `most` times.

    With the same seed the same inputs come in the same order.

    Raises:
        Crashed: an input made the target raise.
    """
    chance = random.Random(seed)
    outcome = Outcome()
    until = time.monotonic() + seconds
    pool = [item[:LONGEST_INPUT] for item in seeds] or [b""]
    for item in pool:
        _run(target, item, outcome)
    while time.monotonic() < until and outcome.executions < most:
        # The latest finds are mutated most.
        near = outcome.kept if outcome.kept and chance.random() < 0.7 else pool
        item = _mutated(chance.choice(near), pool, target.tokens, chance)
        _run(target, item, outcome)
    return outcome


def _run(target: Target, item: bytes, outcome: Outcome) -> None:
    reached = _Lines(target.watched)
    outcome.executions += 1
    try:
        reached.during(lambda: target.fuzz_one(item))
    except Exception as error:
        raise Crashed(target, item, outcome.executions) from error
    if not reached.lines <= outcome.lines:
        outcome.lines |= reached.lines
        outcome.kept.append(item)


class _Lines:
    """Which lines of some modules run."""

    def __init__(self, watched: tuple[str, ...]) -> None:
        self.lines: set[Line] = set()
        self._watched = watched

    def during(self, call: Callable[[], None]) -> None:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        module = frame.f_globals.get("__name__", "")
        return self._line if event == "call" and module.startswith(self._watched) else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def _mutated(item: bytes, pool: list[bytes], tokens: tuple[bytes, ...], chance: random.Random) -> bytes:
    changed = bytearray(item)
    for _ in range(1 + chance.randrange(4)):
        at = chance.randrange(len(changed) + 1)
        to = min(len(changed), at + 1 + chance.randrange(16))
        way = chance.randrange(9)
        if way == 0 and changed:
            changed[at % len(changed)] = chance.randrange(256)
        elif way == 1 and changed:
            changed[at % len(changed)] ^= 1 << chance.randrange(8)
        elif way == 2:
            del changed[at:to]
        elif way == 3:
            changed[at:at] = changed[at:to] * chance.choice((1, 2, 8))
        elif way == 4 and tokens:
            changed[at:at] = chance.choice(tokens)
        elif way == 5 and tokens:
            changed[at:to] = chance.choice(tokens)
        elif way == 6:
            other = chance.choice(pool)
            cut = chance.randrange(len(other) + 1)
            changed = changed[:at] + bytearray(other[cut : cut + 512])
        elif way == 7:
            changed[at:at] = chance.choice((b"[", b'{"a":')) * chance.choice((8, 40, 300, 1_100))
        else:
            # A whole line twice or elsewhere: order and repetition matter to files of lines.
            lines = bytes(changed).split(b"\n")
            lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))
            changed = bytearray(b"\n".join(lines))
    return bytes(changed[:LONGEST_INPUT])
