"""80 questions about 40 folders, each with the call that asks it and an answer worked out without the server."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
        odd = said["nan"] + said["inf"] + said["neg_inf"]
        asked: dict[str, Any] = {"folder": folder, "runs": [foreign / folder]}
        found += [
            Question(
                text=f"What is the last {metric} in {folder}, and at which step?",
                tool="describe",
                arguments={"run": keys[folder], "metrics": metric},
                is_right=_row_is("metrics", said["last"]["value"], said["last"]["step"], which="last"),
                **asked,
            ),
            Question(
                text=f"What is the smallest {metric} in {folder}, and how many values are not finite?",
                tool="curve",
                arguments={"run": keys[folder], "metric": metric, "n": 20},
                is_right=_gives(
                    lambda payload: (_lowest(payload), payload.get("not_finite")), (said["min"], odd)
                ),
                **asked,
            ),
        ]
    return found


def runs_in(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the runs that a tool's own reader found."""
    if "runs" in content:
        return list(content["runs"])
    return [run for experiment in content["experiments"] for run in experiment["runs"]]


# ------------------------------------------------------------ what is right


def _gives(read: Callable[[Payload], Any], expected: Any) -> Callable[[Payload], bool]:
    """Return whether what is read from an answer is what is expected; of a float, up to rounding."""
    if isinstance(expected, float):
        return lambda payload: math.isclose(read(payload), expected, rel_tol=1e-12)
    return lambda payload: bool(read(payload) == expected)


def _row_is(part: str, value: float, step: int, **fields: Any) -> Callable[[Payload], bool]:
    """Return whether a table has this value at this step, in a row with these fields."""
    return lambda payload: any(
        (row["value"], row["step"]) == (value, step)
        for row in rows_of(payload[part])
        if fields.items() <= row.items()
    )


def _lowest(payload: Payload) -> float:
    return float(min(row["value"] for row in rows_of(payload["points"]) if not isinstance(row["value"], str)))


# ------------------------------------------------------------ ours


class _Reference:
    """The records of a run, read as plainly as possible."""

    def __init__(self, folder: Path) -> None:
        self.records = [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]

    def points(self, metric: str) -> list[tuple[float, int]]:
        """Return the values of a metric and their steps."""
        return [
            (math.nan if record[metric] is None else float(record[metric]), record["global_step"])
            for record in self.records
            if record["event"] in ("step", "eval") and metric in record
        ]

    def best(self, metric: str) -> tuple[float, int]:
        """Return the lowest value and its step."""
        return min(point for point in self.points(metric) if math.isfinite(point[0]))

    def odd(self) -> list[int]:
        """Return the steps at which the loss is not a number."""
        return [step for value, step in self.points("train_loss") if math.isnan(value)]


def _about_ours(root: Path) -> list[Question]:
    runs = {path.name: _Reference(path) for path in sorted(root.iterdir()) if path.is_dir()}
    found: list[Question] = []
    about: dict[str, Any]

    def add(text: str, tool: str, is_right: Callable[[Payload], bool], *about: str, **arguments: Any) -> None:
        if tool in _OF_ONE_RUN:
            arguments = {"run": about[0], **arguments}
        elif tool == "compare":
            arguments = {"runs": [*about], "metrics": "train_loss"}
        asked: dict[str, Any] = {"folder": about[0], "runs": [root / name for name in about]}
        found.append(Question(text=text, tool=tool, arguments=arguments, is_right=is_right, **asked))

    for name in ("alpha-1", "beta-1", "half-1", "long-1", "failed-1", "wide-1", "wide-2"):
        is_right = _row_is("metrics", *runs[name].points("train_loss")[-1], which="last")
        add(f"What is the last train_loss of {name}?", "describe", is_right, name, metrics="train_loss")
    for name in ("alpha-2", "beta-2", "half-2", "long-2", "nan-1"):
        # The last one may be the best one, too.
        is_right = _row_is("metrics", *runs[name].best("val_loss"))
        add(f"What is the best val_loss of {name}, where?", "describe", is_right, name, metrics="val*")
    for name in ("alpha-3", "beta-3", "long-1", "long-2", "spike-1", "resumed-same"):
        is_right = _row_is("points", *max(runs[name].points("grad_norm")))
        add(f"Where is grad_norm of {name} largest?", "curve", is_right, name, metric="grad_norm", n=20)
    for name, step in (("alpha-4", 77), ("spike-1", 170), ("nan-2", 110)):
        (value,) = (value for value, at in runs[name].points("train_loss") if at == step)
        about = {"metric": "train_loss", "first_step": step, "last_step": step}
        is_right = _row_is("points", value, step)
        add(f"What was train_loss of {name} at {step}?", "curve", is_right, name, **about)
    for name, first, to in (("beta-4", 50, 150), ("long-1", 1_000, 2_000), ("half-1", 400, 500)):
        values = [value for value, step in runs[name].points("train_loss") if first <= step <= to]
        is_right = _gives(lambda payload: payload["mean"]["value"], sum(values) / len(values))
        about = {"metric": "train_loss", "n": 5, "first_step": first, "last_step": to}
        add(f"What is the mean train_loss of {name} from {first} to {to}?", "curve", is_right, name, **about)
    for name in ("nan-1", "nan-2", "nan-3"):
        odd = runs[name].odd()
        is_right = _gives(lambda payload: (_odd_steps(payload), payload["not_finite"]), (odd, len(odd)))
        add(
            f"At which steps is train_loss of {name} NaN?", "curve", is_right, name, metric="train_loss", n=30
        )
    for name in ("nan-1", "nan-3"):
        is_right = partial(_has_nan, step=runs[name].odd()[0])
        add(f"What is wrong with {name}, since when?", "doctor", is_right, name)
    errors = {"failed-1": "CUDA error 719", "failed-2": "shape 3 and 4", "failed-3": "KeyError"}
    for name, error in errors.items():
        add(f"Why did {name} fail?", "doctor", partial(_has_failed, error=error), name)
    is_right, about = _gives(lambda payload: payload["total"], 3), {"query": "status:failed format:telemetry"}
    add("How many runs of ours failed?", "list", is_right, *errors, **about)
    low = min((runs[name].best("val_loss"), name) for name in runs if runs[name].points("val_loss"))
    is_right = _gives(
        lambda payload: [rows_of(payload["runs"])[0][name] for name in ("run", "value")], [low[1], low[0][0]]
    )
    order = {"sort": "best:val_loss", "metrics": ["best:val_loss"], "limit": 5}
    add("Which run has the lowest val_loss?", "list", is_right, low[1], **order)
    for name, rate in (("beta-1", 3e-3), ("nan-2", 0.02), ("failed-3", 1e-4 * 3)):
        is_right = partial(_has_rate, name=name, rate=rate)
        about = {"query": name, "settings": ["learning_rate"]}
        add(f"Which learning rate has {name}?", "list", is_right, name, **about)
    for a, b, setting in (
        ("alpha-1", "beta-1", "learning_rate"),
        ("alpha-1", "alpha-2", "seed"),
        ("pair-a", "pair-b", "dropout"),
    ):
        is_right = _gives(lambda payload: [*payload["settings"]], [setting])
        add(f"Which settings differ in {a} and {b}?", "compare", is_right, a, b)
    for pair in (("alpha-3", "beta-3"), ("long-1", "long-2"), ("resumed-same", "resumed-other")):
        is_right = _gives(_ends, [(name, *runs[name].points("train_loss")[-1]) for name in pair])
        add(f"Which ends lower, {pair[0]} or {pair[1]}?", "compare", is_right, *pair)
    for name, answer in (("resumed-same", "same"), ("resumed-other", "different"), ("resumed-twice", "same")):
        is_right = _gives(lambda payload: payload["resumes"][0]["answer"], answer)
        add(f"Did {name} continue the same training?", "resume", is_right, name)
    pair = ("pair-a", "pair-b")
    is_right = _gives(lambda payload: (payload["step"], payload["answer"]), (38, "differ"))
    add("From which step on do pair-a and pair-b differ?", "why", is_right, *pair, a=pair[0], b=pair[1])
    of_groups = [f"{group}-{seed}" for group in ("beta", "alpha") for seed in range(1, 5)]
    for new, old, answer, those in (
        ("beta-1", "alpha-1", "better", of_groups),
        ("alpha-2", "alpha-1", "not better", ["alpha-2", "alpha-1"]),
    ):
        is_right = _gives(lambda payload: payload["answer"], answer)
        add(f"Is {new} better than {old}?", "verdict", is_right, *those, new=[new], against=[old])
    for name in ("half-1", "half-2"):
        add(f"Where will the loss of {name} end?", "forecast", _holds_the_end, name)
    for group in ("alpha", "beta"):
        own = [name for name in runs if name.startswith(group)]
        values = [value for name in own for value, _ in runs[name].points("val_loss")]
        is_right = _gives(lambda payload: payload["rows"]["rows"][0][0], sum(values) / len(values))
        query = f"select avg(val_loss) from evals where run like '{group}-%'"
        add(f"What is the mean val_loss of all {group} runs?", "sql", is_right, *own, query=query)
    value, step, name = max((*point, name) for name in runs for point in runs[name].points("grad_norm"))
    columns = "run, session, step, grad_norm, file, byte_offset"
    known = "byte_offset is not null and grad_norm is not null"
    query = f"select {columns} from steps where {known} order by grad_norm desc limit 3"
    is_right = _gives(lambda payload: payload["rows"]["rows"][0][:4], [name, 1, step, value])
    add("Which run of ours had the largest grad_norm, and where is it?", "sql", is_right, name, query=query)
    for name, step in (("printing-1", 42), ("printing-2", 99)):
        line = f"step {step} done, checksum {step * 7919 % 104729}"
        is_right = _gives(lambda payload: [row["text"] for row in rows_of(payload["lines"])], [line])
        add(f"What did {name} print at step {step}?", "logs", is_right, name, grep=f"^step {step} ")
    return found


def _odd_steps(payload: Payload) -> list[int]:
    return [row["step"] for row in rows_of(payload["points"]) if row["value"] == "NaN"]


def _has_nan(payload: Payload, step: int) -> bool:
    return any((one["kind"], one["start_step"]) == ("nan", step) for one in payload["findings"])


def _has_failed(payload: Payload, error: str) -> bool:
    return payload["status"] == "failed" and error in json.dumps(payload.get("error", ""))


def _has_rate(payload: Payload, name: str, rate: float) -> bool:
    return [row["value"] for row in rows_of(payload["runs"]) if row["run"] == name] == [rate]


def _ends(payload: Payload) -> list[tuple[Any, ...]]:
    last = [row for row in rows_of(payload["metrics"]) if row["which"] == "last"]
    return [(row["run"], row["value"], row["step"]) for row in last]


def _holds_the_end(payload: Payload) -> bool:
    # The loss of these runs is known for every step.
    truth, one = 0.5 + 2.0 / 1000**0.3, payload["losses"][0]
    return bool(one["low"] <= truth <= one["high"] and one["at_step"] == 1000)
