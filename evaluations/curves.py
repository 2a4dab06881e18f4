"""Labelled training curves: the open ones of the corpus, with its evaluator, and made ones whose faults are known.

The made ones are small trainings on a CPU, each with and without one of 22 faults: a label is where the two depart.
`python -m evaluations.made_curves.make --jobs 16` of commit 873993a7 made, labelled and wrote them; the files have
the settings of every training.
"""

from __future__ import annotations

import csv
import functools
import importlib.util
import json
import lzma
import math
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from evaluations.figures import ROOT

DEFAULT: Final = ROOT.parent / "shared" / "corpus"
"""Next to a checkout: labels, curves and `evaluate.py`."""
_MADE: Final = Path(__file__).with_name("made_curves")
_EVALUATOR: Final = "evaluate.py"
_OF_EVALUATIONS: Final = ("eval_step", "val_loss")

Rows = list[dict[str, Any]]
Prediction = dict[str, Any]
"""One event in the evaluator's form: kind, start_step, end_step, detected_step, severity."""


class CorpusError(Exception):
    """There is no usable corpus; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One folder with labels and their runs."""

    name: str
    folder: Path
    labels: Mapping[str, Any] = field(repr=False)
    """Labels of the available runs."""
    manifest: Mapping[str, Mapping[str, str]] = field(repr=False)
    """Where each run is from: `source_repo` and `framework`."""

    def rows(self, run: str) -> Rows:
        """Return the records of `run`; bare NaN and Infinity are accepted."""
        with open(self.folder / "runs" / f"{run}.jsonl", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.strip()]

    def repository(self, run: str) -> str:
        """Return the repository that `run` is from, or its own name where that is not known."""
        return self.manifest.get(run, {}).get("source_repo", run)

    def framework(self, run: str) -> str:
        """Return what logged `run`, or nothing where that is not known."""
        return self.manifest.get(run, {}).get("framework", "")

    def only(self, runs: Collection[str]) -> Split:
        """Return a copy with these runs only."""
        return replace(self, labels={name: about for name, about in self.labels.items() if name in runs})


# ---------------------------------------------------------------- open curves


def splits_of(corpus: Path, most: int | None = None) -> list[Split]:
    """Return the parts of `corpus` with labels and curves, its folders or `corpus` itself, each with the first `most`.

    Raises:
        CorpusError: there are no labels or curves.
    """
    if not corpus.is_dir():
        raise CorpusError(f"There is no corpus at {corpus}: no such folder. Set CORPUS=DIR.")
    folders = [corpus, *sorted(path for path in corpus.iterdir() if path.is_dir())]
    splits = [_read(folder) for folder in folders if (folder / "labels.json").is_file()]
    if not any(split.labels for split in splits):
        raise CorpusError(
            f"{corpus} holds no labelled curve: no labels.json with curves in runs/ next to it."
        )
    return [split.only(list(split.labels)[:most]) for split in splits if split.labels]


def _read(folder: Path) -> Split:
    labels: dict[str, Any] = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    there = {name: about for name, about in labels.items() if (folder / "runs" / f"{name}.jsonl").is_file()}
    manifest = {}
    if (folder / "manifest.csv").is_file():
        with open(folder / "manifest.csv", encoding="utf-8", newline="") as lines:
            manifest = {row["run_id"]: row for row in csv.DictReader(lines)}
    return Split(name=folder.name, folder=folder, labels=there, manifest=manifest)


class Evaluator:
    """The corpus's own `evaluate.py`, used in place."""

    def __init__(self, corpus: Path) -> None:
        # CORPUS may be one part of a corpus, and curves of one's own have no evaluator.
        places = (corpus / _EVALUATOR, corpus.parent / _EVALUATOR, DEFAULT / _EVALUATOR)
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            raise CorpusError(f"The evaluator is missing: {corpus} holds no {_EVALUATOR}.")
        self._module = _imported(path)
        # It loads the steps of a run for every finding that is judged alone, and they do not change.
        read = functools.lru_cache(maxsize=None)(self._module.load_steps)
        self._module.load_steps = lambda path: read(os.path.realpath(path))

    def score(
        self, split: Split, predictions: Mapping[str, list[Prediction]], runs: Collection[str] | None = None
    ) -> Any:
        """Evaluate predictions of severity warning and above, on all or on these runs."""
        with tempfile.TemporaryDirectory() as name:
            # A folder in its layout that has the labels of these runs only: it judges every label it finds.
            folder, chosen = Path(name), split if runs is None else split.only(runs)
            (folder / "labels.json").write_text(json.dumps(chosen.labels), encoding="utf-8")
            (folder / "runs").symlink_to((split.folder / "runs").resolve(), target_is_directory=True)
            # 1: from warning on, as what is `info` alerts no one. True: with each error by name, for --list-errors.
            return self._module.evaluate(str(folder), predictions, 1, True)


def _imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its classes are looked up there.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- made curves


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRun:
    """One made training."""

    id: str
    family: str
    """What kind of model it trained."""
    schedule: str
    """Of its learning rate."""
    labels: Sequence[Mapping[str, Any]]
    """As in labels.json: kind, start_step, end_step, certainty, note."""
    is_clean: bool
    """Whether no alarm would be right."""
    columns: Mapping[str, Sequence[float]] = field(repr=False)
    """`step`, `train_loss`, `lr` and others of the same length; `eval_step` and `val_loss`."""

    @property
    def labelled(self) -> dict[str, Any]:
        """Return its entry in labels.json."""
        sure = any(label["certainty"] == "sure" for label in self.labels)
        return {"labels": list(self.labels), "clean": self.is_clean, "no_sure_label": not sure}


def made_runs() -> list[MadeRun]:
    """Return the made runs with and without a fault."""
    return [_run(one["id"], one) for one in _unpacked("curves")["runs"]]


def made_sweeps() -> list[list[MadeRun]]:
    """Return the made sweeps: runs of one task that differ in some settings, each trained to its end."""
    sweeps = _unpacked("sweeps")["sweeps"]
    return [[_run(f"{one['id']}-{place}", run) for place, run in enumerate(one["runs"])] for one in sweeps]


def records_of(columns: Mapping[str, Sequence[float]]) -> Rows:
    """Return the records of a made run in the form of the corpus, an evaluation after its step."""
    names = [name for name in columns if name not in ("step", *_OF_EVALUATIONS)]
    rows = [
        {"event": "step", "global_step": step, **dict(zip(names, values, strict=True))}
        for step, *values in zip(columns["step"], *(columns[name] for name in names), strict=True)
    ]
    rows += [
        {"event": "eval", "global_step": step, "val_loss": value}
        for step, value in zip(*(columns.get(name, ()) for name in _OF_EVALUATIONS), strict=True)
    ]
    return sorted(rows, key=lambda row: (row["global_step"], row["event"] == "eval"))


@contextmanager
def made_split(runs: Sequence[MadeRun]) -> Iterator[Split]:
    """Write made curves in the layout of the corpus, for as long as they are used."""
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
            manifest={run.id: {"source_repo": run.family} for run in runs},
        )


def _unpacked(name: str) -> Any:
    return json.loads(lzma.decompress((_MADE / f"{name}.xz").read_bytes()))


def _run(name: str, one: Mapping[str, Any]) -> MadeRun:
    settings, labels = one["settings"], one.get("labels", ())
    columns: dict[str, Sequence[float]] = {}
    for column, values in one["columns"].items():
        if column == "lr":
            # Not in the file: the settings say it.
            columns[column] = [_rate(settings, int(step)) for step in columns["step"]]
        elif isinstance(values, dict):
            end = values["first"] + values["every"] * values["count"]
            columns[column] = range(values["first"], end, values["every"])
        else:
            columns[column] = values
    return MadeRun(
        id=name,
        family=settings["family"],
        schedule=settings.get("schedule", "cosine"),
        labels=labels,
        is_clean=one.get("cause", "none") == "none" and not labels,
        columns=columns,
    )


def _rate(settings: Mapping[str, Any], step: int) -> float:
    """Return the learning rate of a step, the first being 1; what the settings do not say was at its default."""
    rate = float(settings.get("lr", 1e-3)) * float(settings.get("lr_factor", 1.0))
    begins, steps = settings.get("jump_step"), settings["steps"]
    if begins is not None and begins <= step < begins + (settings.get("jump_for", 0) or steps):
        rate *= float(settings.get("jump", 1.0))
    warm_up, lowest = int(settings.get("warm_up", 0)), float(settings.get("lowest", 0.0))
    if step <= warm_up:
        return rate * step / warm_up
    done = (step - warm_up) / max(1, steps - warm_up)
    falling: float = {
        "constant": 1.0,
        "linear": 1 - done,
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "restarts": (1 + math.cos(math.pi * (done * 3 % 1))) / 2,
        "wsd": min(1.0, (1 - done) / 0.2),
        "steps": 0.1 ** int(min(done, 0.999) * 3),
    }[settings.get("schedule", "cosine")]
    return rate * (lowest + (1 - lowest) * falling)
