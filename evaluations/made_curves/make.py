"""Make the curves and the sweeps: `python -m evaluations.made_curves.make --jobs 16 --out DIR`.

Needs torch and numpy. Every finished training goes to DIR/finished.jsonl.gz at once, with its twin; the two files
are written at the end, or after `--seconds`, with what is there. `--only-write` labels and writes them again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from evaluations.made_curves import sweeps
from evaluations.made_curves.causes import ALL, CAUSES, look_alike, plain
from evaluations.made_curves.file import NONE, MadeRun, rounded, write_runs, write_sweeps
from evaluations.made_curves.labels import NATURAL, labels_of, nothing_to_see, seen_without_a_cause
from evaluations.made_curves.settings import Columns, Settings
from evaluations.made_curves.trainings import train

CLEAN_SHARE = 0.36
FINISHED = "finished.jsonl.gz"
_OF_TWIN = ("train_loss", "grad_norm", "val_loss")
_STEADY = 0.12
"""How far tenths of a run may differ in speed for its times to be kept: the rest is the machine, not the training."""


def main(argv: Sequence[str] | None = None) -> int:
    """Make what was asked for; return 0."""
    parser = argparse.ArgumentParser(description="Train the made curves and sweeps.")
    parser.add_argument("--curves", type=int, default=680, help="how many runs with and without a fault")
    parser.add_argument("--sweeps", type=int, default=56, help="how many sweeps of 16 runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seconds", type=float, default=500.0, help="stop then, and write what is finished")
    parser.add_argument("--length", type=float, default=1.0, help="a share of the usual length of runs")
    parser.add_argument("--only-write", action="store_true", help="train nothing; write what is finished")
    parser.add_argument("--out", type=Path, required=True, help="folder for curves.xz and sweeps.xz")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.only_write:
        _make(args)
    found = list(_finished(args.out / FINISHED))
    runs = [labelled(one) for one in found if "sweep" not in one]
    groups = sweeps.groups([one for one in found if "sweep" in one])
    write_runs(args.out / "curves.xz", runs)
    write_sweeps(args.out / "sweeps.xz", groups)
    clean = sum(run.is_clean for run in runs)
    sizes = [f"{name} {(args.out / name).stat().st_size:,} B" for name in ("curves.xz", "sweeps.xz")]
    print(f"{len(runs)} curves, {clean} clean; {len(groups)} sweeps; {', '.join(sizes)}")
    return 0


def _make(args: argparse.Namespace) -> None:
    began = time.monotonic()
    torch.set_num_threads(1)
    jobs = list(_jobs(args))
    done = 0
    with (
        gzip.open(args.out / FINISHED, "wt", encoding="utf-8") as lines,
        multiprocessing.get_context("fork").Pool(args.jobs) as pool,
    ):
        results = pool.imap_unordered(_do, jobs)
        while done < len(jobs) and time.monotonic() - began < args.seconds:
            try:
                lines.write(json.dumps(results.next(timeout=1.0)) + "\n")
            except multiprocessing.TimeoutError:
                continue
            lines.flush()
            done += 1
            if done % 50 == 0:
                print(f"{time.monotonic() - began:.0f} s: {done} of {len(jobs)}", file=sys.stderr, flush=True)
        pool.terminate()
    print(f"{time.monotonic() - began:.0f} s: {done} of {len(jobs)} finished", file=sys.stderr, flush=True)


def _jobs(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Return all trainings in an order of which every beginning has something of everything."""
    curves = [{"number": number, "length": args.length} for number in range(args.curves)]
    runs = [one for number in range(args.sweeps) for one in sweeps.jobs_of(number, args.length)]
    at = 0
    for place, job in enumerate(curves, 1):
        yield job
        until = place * len(runs) // len(curves)
        yield from runs[at:until]
        at = until
    yield from runs[at:]


def _do(job: dict[str, Any]) -> dict[str, Any]:
    if "sweep" in job:
        return sweeps.do(job)
    return make_run(job["number"], job["length"])


def make_run(number: int, length: float = 1.0) -> dict[str, Any]:
    """Train run `number`, and its twin if it has a fault; return both, without labels."""
    dice = random.Random(number)
    # The golden ratio spreads causes evenly over any beginning of the numbers.
    turn = (number * 0.6180339887) % 1.0
    if turn < CLEAN_SHARE:
        return _clean(number, dice, length)
    names = [name for name, cause in CAUSES.items() for _ in range(cause.weight)]
    return _faulty(number, dice, names[int((turn - CLEAN_SHARE) / (1 - CLEAN_SHARE) * len(names))], length)


def _clean(number: int, dice: random.Random, length: float) -> dict[str, Any]:
    settings = plain(dice, number, dice.choice(ALL), length)
    if dice.random() < 0.6:
        settings = look_alike(dice, settings)
    columns = train(settings)
    speeds = ("step_time_s", "data_time_s", "rss_mib") if dice.random() < 0.3 else ()
    kept = _kept(columns, dice, speeds if _is_steady(columns) else speeds[2:])
    return _entry(number, settings, NONE, None, kept, None)


def _faulty(number: int, dice: random.Random, name: str, length: float) -> dict[str, Any]:
    cause = CAUSES[name]
    settings = plain(dice, number, dice.choice(cause.families), length)
    if cause.start:
        settings = cause.start(dice, settings)
    changed, fault_step = cause.change(dice, settings)
    # The twin shares what the cause needs, such as gradients that are not clipped.
    faulty, twin = train(changed), train(replace(settings, clip=changed.clip))
    speeds: tuple[str, ...] = ()
    if "data_starvation" in cause.expected:
        with_share = cause.expected == ("data_starvation",) or dice.random() < 0.5
        speeds = ("step_time_s", "data_time_s") if with_share else ("step_time_s",)
    if "mem_leak" in cause.expected:
        speeds = ("rss_mib",)
    return _entry(number, changed, name, fault_step, _kept(faulty, dice, speeds), twin)


def _kept(columns: Columns, dice: random.Random, speeds: Sequence[str]) -> Columns:
    """Return what this trainer logs: few log everything."""
    left_out = {"step_time_s", "data_time_s", "rss_mib"} - set(speeds)
    if dice.random() < 0.2:
        left_out.add("lr")
    if dice.random() < 0.3:
        left_out.add("grad_norm")
    return {name: values for name, values in columns.items() if name not in left_out}


def labelled(made: dict[str, Any]) -> MadeRun:
    """Return the run with its labels."""
    about = {name: made[name] for name in ("id", "family", "cause", "fault_step", "columns")}
    columns, fault_step = made["columns"], made["fault_step"]
    expected: tuple[str, ...] = ()
    if made["cause"] == NONE:
        labels, has_effect = seen_without_a_cause(columns), True
    else:
        expected = CAUSES[made["cause"]].expected
        labels = labels_of(columns, made["twin"], expected, fault_step)
        has_effect = any(label["kind"] in expected and label["note"] != NATURAL for label in labels)
    if not has_effect:
        labels += nothing_to_see(expected, columns, fault_step)
    settings = Settings.from_mapping(made["settings"])
    return MadeRun(**about, labels=labels, has_effect=has_effect, settings=settings)


def _finished(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        try:
            for line in lines:
                yield json.loads(line)
        except (EOFError, ValueError):
            # It was stopped in the middle of a line.
            return


def _is_steady(columns: Columns) -> bool:
    times = columns["step_time_s"]
    tenth = max(1, len(times) // 10)
    middles = [sorted(times[at : at + tenth])[tenth // 2] for at in range(0, len(times) - tenth + 1, tenth)]
    return max(middles) < (1 + 2 * _STEADY) * min(middles)


def _entry(
    number: int,
    settings: Settings,
    cause: str,
    fault_step: int | None,
    columns: Columns,
    twin: Columns | None,
) -> dict[str, Any]:
    return {
        "id": f"{number:04d}-{settings.family}-{cause}",
        "family": settings.family,
        "cause": cause,
        "fault_step": fault_step,
        "settings": asdict(settings),
        "columns": _short(columns),
        "twin": {name: _short(twin)[name] for name in _OF_TWIN if name in twin} if twin else None,
    }


def _short(columns: Columns) -> Columns:
    return {name: [rounded(value, 6) for value in values] for name, values in columns.items()}


if __name__ == "__main__":
    sys.exit(main())
