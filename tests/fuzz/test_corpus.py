"""Every kept input keeps its promise, and so does what a coverage-guided fuzzer makes of them in a short while."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.fuzz import targets
from tests.fuzz.corpus import inputs_of, replay, size_of_all
from tests.fuzz.loop import Crashed, fuzz
from tests.fuzz.targets import TARGETS
from tests.lengths import is_long, longer
from toolkit.telemetry.runfolder.reader import BadLine, parse_line, read_from

_SEED = 8
_EXECUTIONS = 120
"""Some seconds for all targets together; a slow machine stops earlier."""


@pytest.fixture(autouse=True)
def _leave_nothing() -> Iterator[None]:
    yield
    targets.forget_scratch()


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_and_their_mutations_break_no_promise(name, record_property):
    target = TARGETS[name]
    kept = inputs_of(target)
    assert kept, f"{name} has no inputs in the corpus"

    for path in kept:
        replay(target, path)
    seed = time.time_ns() if is_long() else _SEED
    outcome = fuzz(
        target,
        [path.read_bytes() for path in kept],
        seconds=longer(0.12, 10.0),
        seed=seed,
        most=longer(_EXECUTIONS, 10**9),
    )

    assert outcome.lines, "nothing of what is watched was run"
    record_property(
        "measured",
        f"{len(kept)} kept inputs replayed, {outcome.executions} executions, {len(outcome.lines)} lines reached",
    )


def test_the_fuzzer_finds_a_reader_that_splits_lines_elsewhere_than_at_newlines(monkeypatch, record_property):
    def careless(path, cursor=0, **options):
        chunk = read_from(path, cursor, **options)
        lines = path.read_bytes().decode("utf-8", "replace").splitlines()
        found = [parse_line(0, line.encode()) for line in lines if line]
        records = [record for record in found if not isinstance(record, BadLine)]
        return chunk._replace(records=records) if cursor == 0 else chunk

    monkeypatch.setattr(targets, "read_from", careless)
    target = TARGETS["records"]
    innocent = b'{"event":"step","seq":1,"train_loss":0.5}\n{"event":"note","seq":2,"text":"some words"}\n'
    target.fuzz_one(innocent)

    with pytest.raises(Crashed) as crash:
        fuzz(target, [innocent], seconds=60.0, seed=_SEED, most=20_000)
    record_property("measured", f"found after {crash.value.executions} executions")


def test_the_corpus_is_small():
    assert size_of_all() < 300_000
