"""The contract of detectors: a table of runs, each with the facts of the one finding about it, or with none."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.diagnostics.synthetic_runs import Record, detect
from tests.lengths import longer
from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.finding import Finding

Run = Sequence[Record] | Callable[[], Sequence[Record]]


class Seeds(NamedTuple):
    """A run for each seed: so many usually, and so many in a long run."""

    make: Callable[[int], Sequence[Record]]
    usual: int = 2
    long: int = 5


class Between(NamedTuple):
    """Equal to every number of a range, ends included."""

    low: float
    high: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and self.low <= other <= self.high

    __hash__ = None


class Saying:
    """Equal to every text, or list of texts, in which all these words are and none of those `without`."""

    def __init__(self, *words: str, without: Sequence[str] = ()) -> None:
        self.words, self.without = words, without

    def __eq__(self, other: object) -> bool:
        text = other if isinstance(other, str) else "\n".join(map(str, other))  # type: ignore[call-overload]
        return all(word in text for word in self.words) and not any(word in text for word in self.without)

    def __repr__(self) -> str:
        return f"Saying{self.words}" + (f", without {self.without}" if self.without else "")

    __hash__ = None  # type: ignore[assignment]


def facts_of(finding: Finding, names: Iterable[str]) -> dict[str, Any]:
    """Return what a finding has under these names, in its evidence or as its fields."""
    known = {"title": title_of(finding), **finding.evidence}
    return {name: known[name] if name in known else getattr(finding, name) for name in names}


Facts = Mapping[str, Any]
_FAMILIES: dict[tuple[Any, str], Run | Seeds] = {}
_FAULTS: dict[str, tuple[Run | Seeds, Facts]] = {}


def import_tables() -> list[str]:
    """Import every table of runs; return the kinds of finding that they have."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if "contract_of(" in path.read_text(encoding="utf-8"):
            importlib.import_module(f"tests.diagnostics.{path.stem}")
    return list(_FAULTS)


def fault_of(kind: str) -> tuple[Sequence[Record], int]:
    """Return the records of the first run of a table with a finding of this kind, and the step at which it begins."""
    run, facts = _FAULTS[kind]
    begins = facts.get("start_step", 1)
    return _made(run), int(begins.low if isinstance(begins, Between) else begins)


def contract_of(
    kinds: str | Sequence[str],
    said: Mapping[str, tuple[Run | Seeds, Facts | Sequence[Facts]]],
    silent: Mapping[str, Run | Seeds],
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return two tests: runs of `said` have one finding with these facts, or several, and those of `silent` none."""
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    for name, (run, facts) in said.items():
        # Those that differ in numbers alone are one family.
        _FAMILIES.setdefault((kinds, re.sub(r"[\d.]+", "", name)), run)
        if isinstance(facts, Mapping) and (len(kinds) == 1 or "kind" in facts):
            _FAULTS.setdefault(facts.get("kind", kinds[0]), (run, facts))

    @pytest.mark.parametrize(("run", "facts"), [param for row in said.items() for param in _params(*row)])
    def test_one_finding_has_these_facts(run, facts):
        expected = [dict(facts)] if isinstance(facts, Mapping) else [*map(dict, facts)]
        found = detect(_made(run), *kinds)

        assert len(found) == len(expected), found
        assert [facts_of(*each) for each in zip(found, expected, strict=True)] == expected

    @pytest.mark.parametrize("run", [param for row in silent.items() for param in _params(row[0], (row[1],))])
    def test_nothing_is_found(run):
        assert detect(_made(run), *kinds) == []

    return test_one_finding_has_these_facts, test_nothing_is_found


def put(values: Iterable[Any], at: int, new: Iterable[Any]) -> list[Any]:
    """Return `values` with `new` ones from place `at` on."""
    values, new = list(values), list(new)
    return [*values[:at], *new, *values[at + len(new) :]]


def times(values: Iterable[float], first: int, last: int | None, factor: float) -> list[float]:
    """Return `values` with those from place `first` up to `last` multiplied."""
    values = list(values)
    return put(values, first, [factor * value for value in values[first:last]])


def _params(name: str, row: Sequence[Any]) -> Iterable[Any]:
    run, *facts = row
    if not isinstance(run, Seeds):
        yield pytest.param(run, *facts, id=name)
        return
    for seed in range(longer(run.usual, run.long)):
        yield pytest.param(functools.partial(run.make, seed), *facts, id=f"{name}, seed {seed}")


def _made(run: Run | Seeds) -> Sequence[Record]:
    if isinstance(run, Seeds):
        return run.make(1)
    return run() if callable(run) else run
