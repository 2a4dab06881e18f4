"""The file of the made curves, and that of the made sweeps: JSON in xz, values rounded to a few digits."""

from __future__ import annotations

import itertools
import json
import lzma
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluations.made_curves.settings import Settings

CURVES = Path(__file__).with_name("curves.xz")
SWEEPS = Path(__file__).with_name("sweeps.xz")

NONE = "none"
"""The cause of a run without a fault."""
_DIGITS = {"train_loss": 5, "val_loss": 5, "d_loss": 4, "rss_mib": 6}
_OTHER_DIGITS = 4
_OF_EVALUATIONS = ("eval_step", "val_loss")

Column = Sequence[float]


class MadeFileError(Exception):
    """The file cannot be used; the message says which one and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRun:
    """One training with its labels, which are facts: what was done to it, and where it departs from its twin."""

    id: str
    family: str
    cause: str
    """`none` for a run without a fault."""
    fault_step: int | None
    """The first step that the fault acts on; None without one."""
    labels: Sequence[Mapping[str, Any]]
    """As in labels.json: kind, start_step, end_step, certainty, note. Empty for a clean run."""
    has_effect: bool
    """False where the fault is there and nothing of it can be seen."""
    settings: Settings
    columns: Mapping[str, Column] = field(repr=False)
    """`step`, `train_loss`, `lr` and others of the same length; `eval_step` and `val_loss`."""

    @property
    def is_clean(self) -> bool:
        """Whether no alarm would be right."""
        return self.cause == NONE and not self.labels

    @property
    def labelled(self) -> dict[str, Any]:
        """Return its entry in labels.json."""
        sure = any(label["certainty"] == "sure" for label in self.labels)
        return {"labels": list(self.labels), "clean": self.is_clean, "no_sure_label": not sure}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """One run of a sweep, trained to its end."""

    seed: int
    settings: Settings
    columns: Mapping[str, Column] = field(repr=False)
    """`step`, `train_loss`, `lr`; `eval_step`, `val_loss`."""

    @property
    def planned_steps(self) -> int:
        """Return the number of steps that it was started for, and made."""
        return self.settings.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeSweep:
    """Runs of one task that differ in the settings `varied`."""

    id: str
    family: str
    varied: Sequence[str]
    runs: Sequence[SweepRun] = field(repr=False)


def records_of(columns: Mapping[str, Column]) -> list[dict[str, Any]]:
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


def made_runs(path: Path | None = None) -> list[MadeRun]:
    """Read the made curves.

    Raises:
        MadeFileError: there is no such file, or it is not one of ours.
    """
    return [_run(one) for one in _read(path or CURVES, "runs")]


def made_sweeps(path: Path | None = None) -> list[MadeSweep]:
    """Read the made sweeps.

    Raises:
        MadeFileError: there is no such file, or it is not one of ours.
    """
    return [
        MadeSweep(
            id=one["id"],
            family=one["family"],
            varied=one["varied"],
            runs=[
                SweepRun(
                    seed=settings.order_seed, settings=settings, columns=_unpacked(run["columns"], settings)
                )
                for run in one["runs"]
                for settings in [Settings.from_mapping(run["settings"])]
            ],
        )
        for one in _read(path or SWEEPS, "sweeps")
    ]


def write_runs(path: Path, runs: Iterable[MadeRun]) -> None:
    """Write the made curves, in the order of their ids."""
    _write(path, "runs", [_of_run(run) for run in sorted(runs, key=lambda run: run.id)])


def write_sweeps(path: Path, sweeps: Iterable[MadeSweep]) -> None:
    """Write the made sweeps, in the order of their ids."""
    _write(path, "sweeps", [_of_sweep(sweep) for sweep in sorted(sweeps, key=lambda sweep: sweep.id)])


def _of_run(run: MadeRun) -> dict[str, Any]:
    return {
        "id": run.id,
        "family": run.family,
        "cause": run.cause,
        "fault_step": run.fault_step,
        "labels": list(run.labels),
        "has_effect": run.has_effect,
        "settings": run.settings.to_mapping(),
        "columns": _packed(run.columns),
    }


def _run(one: Mapping[str, Any]) -> MadeRun:
    settings = Settings.from_mapping(one["settings"])
    columns = _unpacked(one["columns"], settings)
    return MadeRun(**{**one, "settings": settings, "columns": columns})


def _of_sweep(sweep: MadeSweep) -> dict[str, Any]:
    runs = [{"settings": run.settings.to_mapping(), "columns": _packed(run.columns)} for run in sweep.runs]
    return {"id": sweep.id, "family": sweep.family, "varied": list(sweep.varied), "runs": runs}


def _packed(columns: Mapping[str, Column]) -> dict[str, Any]:
    """Return columns for the file: steps that are evenly spaced as three numbers, no learning rate."""
    packed: dict[str, Any] = {}
    for name, values in columns.items():
        if name in ("step", "eval_step"):
            packed[name] = _spacing([int(value) for value in values])
        elif name == "lr":
            # The settings have it, and they do so exactly.
            packed[name] = True
        else:
            digits = _DIGITS.get(name, _OTHER_DIGITS)
            packed[name] = [rounded(value, digits) for value in values]
    return packed


def _unpacked(packed: Mapping[str, Any], settings: Settings) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for name, values in packed.items():
        if name == "lr":
            columns[name] = [settings.lr_at(int(step)) for step in columns["step"]]
        elif isinstance(values, dict):
            first, every, count = values["first"], values["every"], values["count"]
            columns[name] = [first + every * place for place in range(count)]
        else:
            columns[name] = values
    return columns


def _spacing(steps: list[int]) -> Any:
    every = steps[1] - steps[0] if len(steps) > 1 else 1
    if steps and all(after - before == every for before, after in itertools.pairwise(steps)):
        return {"first": steps[0], "every": every, "count": len(steps)}
    return steps


def rounded(value: float, digits: int) -> float:
    """Return `value` with this many significant digits."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else value


def _write(path: Path, name: str, found: list[dict[str, Any]]) -> None:
    text = json.dumps({name: found}, separators=(",", ":"))
    # A file that is replaced as a whole is never half written.
    part = path.with_suffix(".part")
    part.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    part.replace(path)


def _read(path: Path, name: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = json.loads(lzma.decompress(path.read_bytes()))[name]
    except FileNotFoundError:
        raise MadeFileError(f"There are no made curves at {path}: no such file.") from None
    except (lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise MadeFileError(f"{path} is not a file of made {name}: {error}") from None
    return found
