"""What holds for every detector, on a run with the fault that it is for."""

from __future__ import annotations

import functools
import math
import random

import pytest

from tests.diagnostics.synthetic_runs import (
    among_ranks,
    changed,
    clean_run,
    curve,
    detect,
    detect_in_chunks,
    evaluated,
    paused,
    run_of,
)
from tests.diagnostics.test_data_repeated import epochs
from tests.diagnostics.test_data_starvation import waiting
from tests.diagnostics.test_dead_lora import adapter
from tests.diagnostics.test_loss_scale import often_infinite
from tests.diagnostics.test_reinforcement import explodes, rl_run
from tests.diagnostics.test_start_of_run import leaking, still
from tests.diagnostics.test_throughput import _slower as slower
from tests.diagnostics.test_time_limit import limited, seconds_of
from tests.diagnostics.test_underflow import norms
from tests.diagnostics.test_vanishing_grad import vanish
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE, REPORTED_BY_RUNS

BEGINS = 2000
LOSSES = ("train_loss", "val_loss")


def _from(begins, change):
    return lambda step, value: change(value) if step >= begins else value


def _run(name, change):
    return changed(clean_run(3, noise=0.05, eval_every=10), name, change), BEGINS


def _among_four_ranks():
    def late(rank, step, part):
        return 0.3 if rank == 2 and part == "data_loading" and step >= BEGINS else 0.0

    return among_ranks(clean_run(1), random.Random(1), 4, late)


LONG = clean_run(1, records=1000, eval_every=50, checkpoint_every=100)

FAULTS = {
    "vanishing_grad": (vanish(0.1)(1), BEGINS),
    "memory_growth": _run("cpu_mem_rss_mb", lambda step, rss: rss + max(0, step - BEGINS)),
    "stalled": (paused(clean_run(1), BEGINS, 2000.0), BEGINS),
    "lr_problem": (
        changed(_run("lr", _from(BEGINS, lambda lr: 0.0))[0], "train_loss", _from(BEGINS, lambda loss: 1.2)),
        BEGINS,
    ),
    "loss_scale": (often_infinite(1), BEGINS),
    "straggler": (list(_among_four_ranks()), BEGINS),
    "throughput_drop": (slower(clean_run(1), 0.5, from_step=BEGINS), BEGINS),
    "data_starvation": (waiting(lambda step: 0.6 if step >= BEGINS else 0.05)(1), BEGINS),
    "low_gpu_util": _run("gpu_util", _from(BEGINS, lambda util: 0.4 * util)),
    "time_limit": (limited(LONG[: len(LONG) // 2], 0.7 * seconds_of(LONG)), 1),
    "reward_hacking": (rl_run(1, kl=explodes), 240),
    "policy_collapse": (rl_run(1, entropy=lambda part: 0.6 if part < 0.5 else 0.001), 200),
    "label_leak": (run_of(leaking()), 11),
    "dead_lora": (adapter([0.1] * 50 + [0.0] * 50), 51),
    "lr_too_small": (still(2e-9), 1),
    "data_repeated": (epochs(1, shuffled=False), 410),
    "underflow": (run_of(curve(1), grad_norm=norms(0.5)), 101),
    "nan": _run("train_loss", _from(BEGINS, lambda value: math.nan)),
    "spike": _run("train_loss", lambda step, value: value * 8.0 if BEGINS <= step < BEGINS + 60 else value),
    "divergence": _run("train_loss", _from(BEGINS, lambda value: value * 7.0)),
    "exploding_grad": _run(
        "grad_norm", lambda step, value: value * 60.0 if BEGINS <= step < BEGINS + 50 else value
    ),
    "val_spike": _run(
        "val_loss", lambda step, value: value * 5.0 if BEGINS <= step < BEGINS + 150 else value
    ),
    "overfit": (
        evaluated(run_of(curve(1)), [2.0, 1.6, 1.4, 1.3, *(1.3 + 0.1 * n for n in range(1, 13))], each=20),
        80,
    ),
    "plateau": (
        run_of([3.0 - 0.02 * min(n, 100) + random.Random(n).gauss(0.0, 0.05) for n in range(1500)]),
        100,
    ),
}
"""The records of a run with the fault, and the step at which it begins."""

OF_SEVERAL_FILES = {"rank_nan", "rank_dead", "rank_hung", "rank_silent"}
"""They need the files of other ranks, and have their own tests."""


@functools.cache
def found_in(kind):
    return detect(FAULTS[kind][0], kind)


def test_every_kind_that_records_show_has_a_fault_here():
    assert sorted(FAULTS) == sorted(set(CATALOGUE) - set(REPORTED_BY_RUNS) - OF_SEVERAL_FILES)


@pytest.mark.parametrize("kind", FAULTS)
def test_the_fault_is_found_after_it_began_and_not_before(kind):
    records, begins = FAULTS[kind]
    before = [record for record in records if record.get("global_step", 0) < begins]

    assert [finding for finding in found_in(kind) if finding.noticed_step >= begins]
    assert detect(before, kind) == []


@pytest.mark.parametrize("kind", sorted(set(FAULTS) - {"nan"}))
def test_three_records_say_nothing(kind):
    records, begins = FAULTS[kind]
    later = [record for record in records if record.get("global_step", 0) >= begins]

    assert detect(later[:3], kind) == []


@pytest.mark.parametrize("kind", FAULTS)
def test_the_findings_are_the_same_however_many_records_come_at_once(kind):
    # tests/diagnostics/test_examiner.py gives them one by one.
    assert detect_in_chunks(FAULTS[kind][0], 37, kind) == found_in(kind)


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("scale", [1e-2, 1e5])
def test_the_unit_of_the_losses_does_not_matter(kind, scale):
    records, _ = FAULTS[kind]
    scaled = records
    for name in LOSSES:
        scaled = changed(scaled, name, lambda step, value: value * scale)

    assert [_place(finding) for finding in detect(scaled, kind)] == [*map(_place, found_in(kind))]


@pytest.mark.parametrize("kind", FAULTS)
def test_values_of_other_types_change_nothing(kind):
    records, _ = FAULTS[kind]
    names = {name for record in records for name in record} - {"event", "global_step", "session", "rank"}
    odd = [None, "text", [1], {"a": 1}]
    mixed = []
    for number, record in enumerate(records):
        mixed.append(record)
        if number % 20 == 19:
            mixed.append(
                {
                    **dict.fromkeys(names, odd[number // 20 % 4]),
                    **{k: record[k] for k in record if k not in names},
                }
            )

    assert [finding.kind for finding in detect(mixed, kind)] == [finding.kind for finding in found_in(kind)]


def _place(finding):
    return finding.kind, finding.severity, finding.start_step, finding.noticed_step, finding.state
