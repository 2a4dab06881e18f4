"""Other detectors on the same curves, each used as its documentation shows."""

from __future__ import annotations

import bisect
import importlib
import importlib.metadata
import importlib.util
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.diagnose_eval.corpus import Prediction, Rows, load_module, next_to

Tool = Callable[[Rows], list[Prediction]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A tool that examines a run's records."""

    name: str
    title: str
    predict: Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A published rule for one kind of event."""

    title: str
    kind: str
    predict: Tool


def packages() -> tuple[list[Contender], list[str]]:
    """Return the installed peers from PyPI, and a note for each that is not."""
    present, absent = [], []
    for package, predict in (
        ("runmedic", _runmedic),
        ("trainpulse", _trainpulse),
        ("training-doctor", _training_doctor),
    ):
        if importlib.util.find_spec(package.replace("-", "_")) is None:
            absent.append(f"{package}: not measured, it is not installed")
            continue
        title = f"{package} {importlib.metadata.version(package)}"
        present.append(Contender(name=package, title=title, predict=predict))
    return present, absent


def baselines(corpus: Path) -> tuple[list[Contender], list[Rule], list[str]]:
    """Return the corpus's baselines and its rules of known tools, or a note if there are not any."""
    folder = next_to(corpus, "baselines")
    if folder is None:
        return [], [], [f"baselines: not measured, {corpus} has none"]
    ours, rules = (load_module(folder / f"{name}.py", f"corpus_{name}") for name in ("baseline", "peers"))
    titles = {
        "naive": "baseline: fixed windows and percentages",
        "robust": "baseline: robust z-score",
        "cusum": "baseline: CUSUM on robust residuals",
    }
    contenders = [
        Contender(name=name, title=title, predict=getattr(ours, name)) for name, title in titles.items()
    ]
    return contenders, [Rule(title=title, kind=kind, predict=tool) for title, tool, kind in rules.PEERS], []


def _event(
    kind: str,
    start: float | None,
    end: float | None,
    reported: float | None = None,
    severity: str = "warning",
) -> Prediction:
    return {
        "kind": kind,
        "start_step": start,
        "end_step": end,
        "detected_step": reported,
        "severity": severity,
    }


# ---------------------------------------------------------------- runmedic: the whole run at once

_RUNMEDIC = {
    "non_finite": "nan",
    "divergence": "divergence",
    "loss_spikes": "spike",
    "no_learning": "plateau",
    "constant_lr_plateau": "plateau",
    "overfitting": "overfit",
    "grad_spikes": "exploding_grad",
    "slowdown": "throughput_drop",
    "memory_growth": "mem_leak",
}
_SINGLE = ("loss_spikes", "grad_spikes")
_LISTED = re.compile(r"^spike steps: (.*)$")


def _runmedic(rows: Rows) -> list[Prediction]:
    tabular, checks, roles, model = (
        importlib.import_module(f"runmedic.{name}")
        for name in ("loaders.tabular", "checks", "roles", "model")
    )
    run = model.Run(name="run", source="jsonl", path="")
    for row in rows:
        for name, value in row.items():
            if isinstance(value, (int, float)) and name not in {*tabular.STEP_KEYS, *tabular.SKIP_KEYS}:
                run.get(name).add(float(row["global_step"]), float(value))
    run.finalize()
    events = []
    for found in checks.run_checks(run, roles.detect(run)):
        kind = _RUNMEDIC.get(found.check, found.check)
        if found.check == "input_bound":
            kind = "low_gpu_util" if "util" in (found.metric or "") else "data_starvation"
        # One finding names up to ten steps that spiked: each of them counts as reported.
        listed = [match[1] for line in found.evidence if (match := _LISTED.match(line))]
        if found.check in _SINGLE and listed:
            steps = [float(step) for step in listed[0].removesuffix(" ...").split(", ")]
            events += [_event(kind, step, step, severity=found.severity) for step in steps]
        else:
            events.append(_event(kind, found.step, None, severity=found.severity))
    return events


# ---------------------------------------------------------------- trainpulse: value by value

_TRAINPULSE = {
    "train_loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "learning_rate",
    "step_time_s": "step_time",
    # Everything with "loss" in its name shares one window with the training loss.
    "val_loss": "validation",
}


def _trainpulse(rows: Rows) -> list[Prediction]:
    trainpulse: Any = importlib.import_module("trainpulse")
    monitor = trainpulse.Monitor()
    patience = monitor.config.plateau_patience
    steps: list[int] = []
    events = []
    for row in rows:
        step = row["global_step"]
        if row.get("train_loss") is not None:
            steps.append(step)
        for theirs, name in _TRAINPULSE.items():
            value = row.get(theirs)
            # Some log a step time that is not measured yet as NaN; that is not a fault of the run.
            if value is None or (theirs == "step_time_s" and not math.isfinite(value)):
                continue
            for alert in monitor.log(name, step, value):
                start = step
                kind = alert.detector
                if kind == "nan_detector":
                    kind = "nan"
                elif kind == "loss_spike":
                    kind = "spike"
                elif kind == "gradient":
                    kind = "vanishing_grad" if "Vanishing" in alert.message else "exploding_grad"
                elif kind == "plateau":
                    start = steps[-min(len(steps), patience + 1)]
                events.append(_event(kind, start, step, step, alert.severity.value))
    return events


# ---------------------------------------------------------------- training-doctor: record by record

_DOCTOR_OFTEN = 2000
_DOCTOR_STRIDE = 10


def _training_doctor(rows: Rows) -> list[Prediction]:
    package, store_module = (
        importlib.import_module(name) for name in ("training_doctor", "training_doctor.metrics")
    )
    detectors = package.Doctor().detectors
    store = _quick_store(store_module.MetricStore)()
    steps: list[int] = []
    events = []
    for number, row in enumerate(rows):
        step = row["global_step"]
        values = {name: row[name] for name in ("lr", "grad_norm", "val_loss") if row.get(name) is not None}
        if row.get("train_loss") is not None:
            # Some of its detectors use one name and some the other.
            values["loss"] = values["train_loss"] = row["train_loss"]
            steps.append(step)
        if not values:
            continue
        store.log(step, **values)
        # Its windows have 50 records and more; queried at each record, a long run takes minutes.
        if number >= _DOCTOR_OFTEN and number % _DOCTOR_STRIDE:
            continue
        for detector in detectors:
            diagnosis = detector.check(store)
            if diagnosis is not None:
                events += _diagnosed(diagnosis, step, steps)
    return events


def _diagnosed(diagnosis: Any, step: int, steps: list[int]) -> list[Prediction]:
    detector = diagnosis.detector_name
    severity = diagnosis.severity.value
    if detector in ("plateau", "lr_too_low"):
        return [
            _event(
                "plateau",
                steps[-min(len(steps), 200 if detector == "plateau" else 100)],
                step,
                step,
                severity,
            )
        ]
    if detector == "overfitting":
        return [_event("overfit", step, step, step, severity)]
    events = []
    for evidence in diagnosis.evidence:
        seen = evidence.observation
        at = step if evidence.step is None else evidence.step
        if "NaN" in seen:
            kind = "nan"
        elif seen.startswith("Loss spiked"):
            kind = "spike"
        elif seen.startswith("Loss"):
            kind = "divergence"
        elif seen.startswith("Vanishing"):
            kind = "vanishing_grad"
        else:
            kind = "exploding_grad"
        events.append(_event(kind, at, step, step, severity))
    return events


def _quick_store(base: Any) -> Any:
    """Its store, with the same results but without scanning the whole run each time."""

    class QuickStore(base):  # type: ignore[misc]  # its class is untyped
        def get_last(self, metric: str, n: int = 1) -> Any:
            return self.get(metric)[-n:]

        def get_window(self, metric: str, start_step: int, end_step: int | None = None) -> Any:
            points = self.get(metric)
            end = self.current_step + 1 if end_step is None else end_step
            first = bisect.bisect_left(points, start_step, key=lambda point: point.step)
            last = bisect.bisect_left(points, end, key=lambda point: point.step)
            return points[first:last]

    return QuickStore
