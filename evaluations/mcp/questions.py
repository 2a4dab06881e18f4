"""80 questions about 40 folders, each with the call that asks it and an answer worked out without the server."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evaluations.mcp.checker import rows_of

Payload = Mapping[str, Any]

FOREIGN_ASKED: Final = {
    "ai_toolkit-killed_wal": (0, "loss/loss"),
    "comet-offline_3": (0, "train/loss"),
    "dvclive-live_3_49": (0, "train/loss"),
    "hf_trainer_state-nan_and_resume_5_22": (2, "loss"),
    "mlflow_files-store_3_17": (1, "eval acc"),
    "neptune-offline_1": (0, "train/loss"),
    "swanlab-local_current": (0, "train/loss"),
    "tensorboard-tensorboardx_2_6_everything": (0, "train/loss"),
    "trackio-jsonl_0_43": (0, "train/loss"),
    "trackio-parquet_0_43": (0, "train/loss"),
    "trackio-sqlite_0_2_8": (0, "loss"),
    "wandb-offline_0_31": (0, "train/loss"),
}
"""Which run and metric of each folder is asked about."""


_OF_ONE_RUN: Final = ("describe", "curve", "doctor", "resume", "forecast", "logs")
"""Tools that are asked about one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question, asked by one call."""

    text: str
    tool: str
    arguments: Mapping[str, Any]
    is_right: Callable[[Payload], bool]
    folder: str
    runs: Sequence[Path]
    """What someone without the server would have to read."""


def questions(
    ours: Path, keys: Mapping[str, str], official: Mapping[str, Any], foreign: Path
) -> list[Question]:
    """Return the questions; `keys` has the run that is meant in each folder of another tool."""
    return [*_about_ours(ours), *_about_foreign(keys, official, foreign)]


def _about_foreign(keys: Mapping[str, str], official: Mapping[str, Any], foreign: Path) -> list[Question]:
    found = []
    for folder, (at, metric) in FOREIGN_ASKED.items():
        said = runs_in(official[folder])[at]["metrics"][metric]
        last, low = said["last"], said["min"]

        def is_last(payload: Payload, last: Any = last) -> bool:
            row = next(row for row in rows_of(payload["metrics"]) if row["which"] == "last")
            return (row["value"], row["step"]) == (last["value"], last["step"])

        def is_low(
            payload: Payload, low: float = low, odd: int = said["nan"] + said["inf"] + said["neg_inf"]
        ) -> bool:
            values = [row["value"] for row in rows_of(payload["points"])]
            numbers = [value for value in values if not isinstance(value, str)]
            return min(numbers) == low and payload.get("not_finite") == odd

        asked: dict[str, Any] = {"folder": folder, "runs": [foreign / folder]}
        found += [
            Question(
                text=f"What is the last {metric} in {folder}, and at which step?",
                tool="describe",
                arguments={"run": keys[folder], "metrics": metric},
                is_right=is_last,
                **asked,
            ),
            Question(
                text=f"What is the smallest {metric} in {folder}, and how many values are not finite?",
                tool="curve",
                arguments={"run": keys[folder], "metric": metric, "n": 20},
                is_right=is_low,
                **asked,
            ),
        ]
    return found


def runs_in(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the runs that a tool's own reader found."""
    if "runs" in content:
        return list(content["runs"])
    return [run for experiment in content["experiments"] for run in experiment["runs"]]


# ------------------------------------------------------------ ours


class _Reference:
    """The records of a run, read as plainly as possible."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]

    def points(self, metric: str) -> list[tuple[int, float]]:
        found = []
        for record in self.records:
            if record["event"] in ("step", "eval") and metric in record:
                value = record[metric]
                found.append((record["global_step"], math.nan if value is None else float(value)))
        return found


def _about_ours(root: Path) -> list[Question]:
    runs = {path.name: _Reference(path) for path in sorted(root.iterdir()) if path.is_dir()}
    found: list[Question] = []

    def add(text: str, tool: str, is_right: Callable[[Payload], bool], *about: str, **arguments: Any) -> None:
        if tool in _OF_ONE_RUN:
            arguments = {"run": about[0], **arguments}
        elif tool == "compare":
            arguments = {"runs": [*about], "metrics": "train_loss"}
        asked: dict[str, Any] = {"folder": about[0], "runs": [root / name for name in about]}
        found.append(Question(text=text, tool=tool, arguments=arguments, is_right=is_right, **asked))

    def row_is(part: str, expected: tuple[float, int], **fields: Any) -> Callable[[Payload], bool]:
        def is_right(payload: Payload) -> bool:
            rows = [row for row in rows_of(payload[part]) if fields.items() <= row.items()]
            return any((row["value"], row["step"]) == expected for row in rows)

        return is_right

    def last(name: str, metric: str) -> tuple[float, int]:
        step, value = runs[name].points(metric)[-1]
        return value, step

    def best(name: str, metric: str) -> tuple[float, int]:
        value, step = min((value, step) for step, value in runs[name].points(metric) if math.isfinite(value))
        return value, step

    for name in ("alpha-1", "beta-1", "half-1", "long-1", "failed-1", "wide-1", "wide-2"):
        is_right = row_is("metrics", last(name, "train_loss"), which="last")
        add(f"What is the last train_loss of {name}?", "describe", is_right, name, metrics="train_loss")
    for name in ("alpha-2", "beta-2", "half-2", "long-2", "nan-1"):
        # The last one may be the best one, too.
        is_right = row_is("metrics", best(name, "val_loss"))
        add(f"What is the best val_loss of {name}, where?", "describe", is_right, name, metrics="val*")
    for name in ("alpha-3", "beta-3", "long-1", "long-2", "spike-1", "resumed-same"):
        high = max((value, step) for step, value in runs[name].points("grad_norm"))
        is_right = row_is("points", high)
        add(f"Where is grad_norm of {name} largest?", "curve", is_right, name, metric="grad_norm", n=20)
    for name, step in (("alpha-4", 77), ("spike-1", 170), ("nan-2", 110)):
        value = dict(runs[name].points("train_loss"))[step]
        is_right = row_is("points", (value, step))
        steps = {"first_step": step, "last_step": step}
        add(
            f"What was train_loss of {name} at {step}?", "curve", is_right, name, metric="train_loss", **steps
        )
    for name, first, to in (("beta-4", 50, 150), ("long-1", 1_000, 2_000), ("half-1", 400, 500)):
        values = [value for step, value in runs[name].points("train_loss") if first <= step <= to]

        def is_mean(payload: Payload, mean: float = sum(values) / len(values)) -> bool:
            return math.isclose(payload["mean"]["value"], mean, rel_tol=1e-12)

        steps = {"first_step": first, "last_step": to}
        text = f"What is the mean train_loss of {name} from {first} to {to}?"
        add(text, "curve", is_mean, name, metric="train_loss", n=5, **steps)
    for name in ("nan-1", "nan-2", "nan-3"):
        odd = [step for step, value in runs[name].points("train_loss") if math.isnan(value)]

        def is_odd(payload: Payload, odd: list[int] = odd) -> bool:
            rows = [row["step"] for row in rows_of(payload["points"]) if row["value"] == "NaN"]
            return rows == odd and payload["not_finite"] == len(odd)

        add(f"At which steps is train_loss of {name} NaN?", "curve", is_odd, name, metric="train_loss", n=30)
    for name in ("nan-1", "nan-3"):
        odd = [step for step, value in runs[name].points("train_loss") if math.isnan(value)]

        def has_nan(payload: Payload, step: int = odd[0]) -> bool:
            return any((one["kind"], one["start_step"]) == ("nan", step) for one in payload["findings"])

        add(f"What is wrong with {name}, since when?", "doctor", has_nan, name)
    for name, kind in (
        ("failed-1", "CUDA error 719"),
        ("failed-2", "shape 3 and 4"),
        ("failed-3", "KeyError"),
    ):

        def is_error(payload: Payload, kind: str = kind) -> bool:
            return payload["status"] == "failed" and kind in json.dumps(payload.get("error", ""))

        add(f"Why did {name} fail?", "doctor", is_error, name)
    add(
        "How many runs of ours failed?",
        "list",
        lambda payload: payload["total"] == 3,
        *("failed-1", "failed-2", "failed-3"),
        query="status:failed format:telemetry",
    )
    low = min((best(name, "val_loss"), name) for name in runs if runs[name].points("val_loss"))

    def is_lowest(payload: Payload) -> bool:
        row = rows_of(payload["runs"])[0]
        return (row["run"], row["value"]) == (low[1], low[0][0])

    order = {"sort": "best:val_loss", "metrics": ["best:val_loss"], "limit": 5}
    add("Which run has the lowest val_loss?", "list", is_lowest, low[1], **order)
    for name, rate in (("beta-1", 3e-3), ("nan-2", 0.02), ("failed-3", 1e-4 * 3)):

        def is_rate(payload: Payload, name: str = name, rate: float = rate) -> bool:
            rows = [row for row in rows_of(payload["runs"]) if row["run"] == name]
            return [row["value"] for row in rows] == [rate]

        add(f"Which learning rate has {name}?", "list", is_rate, name, query=name, settings=["learning_rate"])
    for a, b, names in (
        ("alpha-1", "beta-1", {"learning_rate"}),
        ("alpha-1", "alpha-2", {"seed"}),
        ("pair-a", "pair-b", {"dropout"}),
    ):

        def is_different(payload: Payload, names: set[str] = names) -> bool:
            return set(payload["settings"]) == names

        add(
            f"Which settings differ in {a} and {b}?",
            "compare",
            is_different,
            a,
            b,
            runs=[a, b],
            metrics="train_loss",
        )
    for a, b in (("alpha-3", "beta-3"), ("long-1", "long-2"), ("resumed-same", "resumed-other")):
        ends = [last(name, "train_loss") for name in (a, b)]

        def is_compared(payload: Payload, ends: Any = ends, names: Any = (a, b)) -> bool:
            rows = [row for row in rows_of(payload["metrics"]) if row["which"] == "last"]
            return [(row["run"], row["value"], row["step"]) for row in rows] == [
                (name, *end) for name, end in zip(names, ends, strict=True)
            ]

        add(f"Which ends lower, {a} or {b}?", "compare", is_compared, a, b)
    for name, answer in (("resumed-same", "same"), ("resumed-other", "different"), ("resumed-twice", "same")):

        def is_resume(payload: Payload, answer: str = answer) -> bool:
            return bool(payload["resumes"][0]["answer"] == answer)

        add(f"Did {name} continue the same training?", "resume", is_resume, name)
    add(
        "From which step on do pair-a and pair-b differ?",
        "why",
        lambda payload: payload["step"] == 38 and payload["answer"] == "differ",
        *("pair-a", "pair-b"),
        a="pair-a",
        b="pair-b",
    )
    add(
        "Is beta better than alpha?",
        "verdict",
        lambda payload: payload["answer"] == "better",
        *(f"{group}-{seed}" for group in ("beta", "alpha") for seed in range(1, 5)),
        new=["beta-1"],
        against=["alpha-1"],
    )
    add(
        "Is alpha-2 better than alpha-1?",
        "verdict",
        lambda payload: payload["answer"] == "not better",
        *("alpha-2", "alpha-1"),
        new=["alpha-2"],
        against=["alpha-1"],
    )
    for name in ("half-1", "half-2"):
        # The loss of these runs is known for every step.
        truth = 0.5 + 2.0 / 1000**0.3

        def holds(payload: Payload, truth: float = truth) -> bool:
            one = payload["losses"][0]
            return bool(one["low"] <= truth <= one["high"] and one["at_step"] == 1000)

        add(f"Where will the loss of {name} end?", "forecast", holds, name)
    for group in ("alpha", "beta"):
        values = [
            value for name in runs if name.startswith(group) for _, value in runs[name].points("val_loss")
        ]

        def is_average(payload: Payload, mean: float = sum(values) / len(values)) -> bool:
            return math.isclose(payload["rows"]["rows"][0][0], mean, rel_tol=1e-12)

        own = [name for name in runs if name.startswith(group)]
        query = f"select avg(val_loss) from evals where run like '{group}-%'"
        add(f"What is the mean val_loss of all {group} runs?", "sql", is_average, *own, query=query)
    largest = max((value, step, name) for name in runs for step, value in runs[name].points("grad_norm"))
    columns = "run, session, step, grad_norm, file, byte_offset"
    known = "byte_offset is not null and grad_norm is not null"
    add(
        "Which run of ours had the largest grad_norm, and where is it recorded?",
        "sql",
        lambda payload: payload["rows"]["rows"][0][:4] == [largest[2], 1, largest[1], largest[0]],
        largest[2],
        query=f"select {columns} from steps where {known} order by grad_norm desc limit 3",
    )
    for name, step in (("printing-1", 42), ("printing-2", 99)):
        line = f"step {step} done, checksum {step * 7919 % 104729}"

        def is_line(payload: Payload, line: str = line) -> bool:
            return [row["text"] for row in rows_of(payload["lines"])] == [line]

        add(f"What did {name} print at step {step}?", "logs", is_line, name, grep=f"^step {step} ")
    return found
