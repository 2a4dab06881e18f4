"""Labelled training curves: the corpus with its evaluator, and the made ones in the same form."""

from __future__ import annotations

import csv
import functools
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from evaluations.figures import ROOT
from evaluations.made_curves.file import MadeRun, records_of

DEFAULT = ROOT.parent / "shared" / "corpus"

Rows = list[dict[str, Any]]
Prediction = dict[str, Any]
"""One event in the evaluator's form: kind, start_step, end_step, detected_step, severity."""
Predictions = Mapping[str, list[Prediction]]


class CorpusError(Exception):
    """There is no usable corpus; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One folder with labels and their runs."""

    name: str
    folder: Path
    labels: Mapping[str, Any] = field(repr=False)
    """Labels of the available runs."""
    repositories: Mapping[str, str] = field(repr=False)
    """The repository of each run; empty without a manifest."""
    frameworks: Mapping[str, str] = field(repr=False)
    """What logged each run, the same."""

    def rows(self, run: str) -> Rows:
        """Return the records of `run`; bare NaN and Infinity are accepted."""
        with open(self.folder / "runs" / f"{run}.jsonl", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.strip()]

    def only(self, runs: Collection[str]) -> Split:
        """Return a copy with these runs only."""
        return replace(self, labels={name: about for name, about in self.labels.items() if name in runs})


def splits_of(corpus: Path) -> list[Split]:
    """Return the parts of `corpus` with labels and curves: its folders, or `corpus` itself.

    Raises:
        CorpusError: there are no labels or curves.
    """
    if not corpus.is_dir():
        raise CorpusError(f"There is no corpus at {corpus}: no such folder. Set CORPUS=DIR.")
    folders = [corpus, *sorted(path for path in corpus.iterdir() if path.is_dir())]
    labelled = [folder for folder in folders if (folder / "labels.json").is_file()]
    if not labelled:
        raise CorpusError(f"{corpus} holds no labels.json, and neither does any folder in it.")
    splits = [_read(folder) for folder in labelled if (folder / "runs").is_dir()]
    if not splits:
        raise CorpusError(f"The curves are missing: {labelled[0]} has labels.json and no folder runs.")
    splits = [split for split in splits if split.labels]
    if not splits:
        raise CorpusError(f"The curves are missing: {labelled[0] / 'runs'} holds no labelled run.")
    return splits


def next_to(corpus: Path, name: str) -> Path | None:
    """Return the file or folder `name` of the corpus, or None."""
    places = (corpus / name, corpus.parent / name, DEFAULT / name)
    return next((place for place in places if place.exists()), None)


def load_module(path: Path, name: str) -> ModuleType:
    """Import the Python file at `path` under `name`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Evaluator:
    """The corpus's own `evaluate.py`, used in place."""

    def __init__(self, corpus: Path) -> None:
        path = next_to(corpus, "evaluate.py")
        if path is None:
            raise CorpusError(f"The evaluator is missing: {corpus} holds no evaluate.py.")
        # Under its own name, because other files of the corpus import it.
        self._module = load_module(path, "evaluate")
        # Each tool loads the steps of a run again, and they do not change.
        read = functools.lru_cache(maxsize=None)(self._module.load_steps)
        self._module.load_steps = lambda path: read(os.path.realpath(path))  # type: ignore[attr-defined]

    def score(self, split: Split, predictions: Predictions, runs: Collection[str] | None = None) -> Any:
        """Evaluate `predictions` of severity warning and above, on all or on these runs."""
        with _folder_of(split, split.labels if runs is None else runs) as folder:
            return self._module.evaluate(str(folder), predictions, 1, True)


def _read(folder: Path) -> Split:
    labels: dict[str, Any] = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    there = {name: about for name, about in labels.items() if (folder / "runs" / f"{name}.jsonl").is_file()}
    manifest = folder / "manifest.csv"
    rows: list[dict[str, str]] = []
    if manifest.is_file():
        with open(manifest, encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
    return Split(
        name=folder.name,
        folder=folder,
        labels=there,
        repositories={row["run_id"]: row["source_repo"] for row in rows},
        frameworks={row["run_id"]: row["framework"] for row in rows},
    )


@contextmanager
def _folder_of(split: Split, runs: Collection[str]) -> Iterator[Path]:
    """Create a folder with the labels of some runs only, in the evaluator's layout."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        labels = {run: about for run, about in split.labels.items() if run in runs}
        (folder / "labels.json").write_text(json.dumps(labels), encoding="utf-8")
        (folder / "runs").symlink_to((split.folder / "runs").resolve(), target_is_directory=True)
        yield folder


@contextmanager
def made_split(runs: Sequence[MadeRun]) -> Iterator[Split]:
    """Write the made curves in the layout of the corpus, for as long as they are used."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "runs").mkdir()
        for run in runs:
            lines = "".join(json.dumps(row) + "\n" for row in records_of(run.columns))
            (folder / "runs" / f"{run.id}.jsonl").write_text(lines, encoding="utf-8")
        yield Split(
            name="made",
            folder=folder,
            labels={run.id: run.labelled for run in runs},
            repositories={run.id: run.family for run in runs},
            frameworks={},
        )
