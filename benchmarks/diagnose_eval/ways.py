"""Whether the findings about a run depend on how its records come: one by one, some at a time, or in columns.

`python -m benchmarks.diagnose_eval.ways [CORPUS] [SEED]` says for how many of the open curves, also with the records of
a long run added in front and with faults put in, everything that is known of each finding is the same in every way.
"""

from __future__ import annotations

import math
import random
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.diagnose_eval.corpus import DEFAULT, splits_of
from toolkit.diagnostics.examiner import Examiner
from toolkit.runfolder.alike_lines import runs_in
from toolkit.runfolder.codec import decode, encode
from toolkit.runfolder.reader import Block, Cursor
from toolkit.runfolder.records import Record

_ONLY_WHILE_READING = frozenset({"_incidents", "_ahead", "_trend", "_gaps", "order"})
"""What a detector keeps to be faster, and what belongs to all of them."""


def ways_that_differ(lines: list[bytes], dice: random.Random) -> list[str]:
    """Return the ways in which these lines give other findings, or leave a detector in another state."""
    records = [decode(line) for line in lines]
    alone = [[record] for record in records]
    expected = _outcome(alone)
    ways = {
        "some at a time": list(_parts(records, dice)),
        "all at once": [records],
        "in columns": [_in_columns(part) for part in _parts(lines, dice, most=3_000)],
    }
    return [name for name, parts in ways.items() if _outcome(parts) != expected]


def with_faults(records: list[Record], dice: random.Random) -> list[Record]:
    """Return the records with some values of each metric that are far too high, zero, repeated or not finite."""
    changed = [dict(record) for record in records]
    for _ in range(dice.randint(0, 6)):
        first = dice.randrange(len(changed))
        names = [name for name, value in changed[first].items() if type(value) is float]
        if not names:
            continue
        name, factor = dice.choice(names), dice.choice([0.0, 0.0, 1e-9, 3.0, 50.0, -1.0, math.nan, math.inf])
        for record in changed[first : first + dice.choice([1, 3, 30, 300])]:
            if type(record.get(name)) is float:
                record[name] *= factor
    return changed


def _parts(values: list[Any], dice: random.Random, most: int = 700) -> Iterator[list[Any]]:
    first = 0
    while first < len(values):
        count = dice.choice([1, 7, 8, 50, dice.randint(1, most)])
        yield values[first : first + count]
        first += count


def _in_columns(lines: list[bytes]) -> Any:
    data = b"".join(lines)
    cursor = Cursor(len(data))
    block = Block(data=data, start=0, cursor=cursor, long_line=None, replaced=False, pending_bytes=0)
    return runs_in(block)[0]


def _outcome(parts: list[Any]) -> tuple[Any, ...]:
    examiner = Examiner()
    for part in parts:
        examiner.take(part)
    detectors = sorted(vars(examiner)["_detectors"].items())
    return repr(examiner.findings()), [(type(each).__name__, _state(vars(each))) for _, each in detectors]


def _state(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _state(each) for name, each in value.items() if name not in _ONLY_WHILE_READING}
    if isinstance(value, (list, tuple, deque)):
        return [_state(each) for each in value]
    names = getattr(type(value), "__slots__", ()) or getattr(value, "__dict__", ())
    if names and type(value).__module__.startswith("toolkit"):
        return {name: _state(getattr(value, name)) for name in names if name not in _ONLY_WHILE_READING}
    # Also its type: what numpy leaves behind is no plain number.
    return type(value).__name__, repr(value)


def main() -> None:
    """Say for how many curves all ways agree."""
    import pyarrow.csv  # noqa: F401 - columns are read only where it is loaded

    corpus = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    dice = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    agree = count = 0
    for split in splits_of(corpus):
        for run in split.labels:
            for records in (split.rows(run), with_faults(split.rows(run), dice)):
                differ = ways_that_differ([encode(record) for record in records], dice)
                count += 1
                agree += not differ
                if differ:
                    print(f"{split.name}/{run}: other findings or another state {', '.join(differ)}")
    print(f"{agree:,} of {count:,} runs: the same findings and states, however the records come")


if __name__ == "__main__":
    main()
