from __future__ import annotations

import random

from tests.diagnostics.synthetic_runs import changed, clean_run
from tests.diagnostics.what_is_said import Between, Seeds, contract_of


def busy(share, *, seed=1, **about):
    """A run whose GPU is so busy: a function of the step and the usual value."""
    return changed(clean_run(seed, **about), "gpu_util", share)


def trace(seconds, share, *, per_second=10, seed=1):
    """A GPU's own trace: no steps, only seconds."""
    dice = random.Random(seed)
    return [
        {
            "event": "system",
            "global_step": second,
            "gpu_util_pct": 95.0 if dice.random() < share(second) else 0.0,
        }
        for second in range(seconds)
        for _ in range(per_second)
    ]


def samples(utils, *, every_s=30.0, memory=None):
    memories = memory or [20_000.0] * len(utils)
    return [
        {
            "event": "system",
            "global_step": number,
            "t_s": every_s * number,
            "gpu_util_pct": util,
            "gpu_mem_mib": held,
        }
        for number, (util, held) in enumerate(zip(utils, memories, strict=True))
    ]


def on_step_records(util, *, alone):
    return [
        {**record, "gpu_util": util} if record["event"] == "step" else record
        for record in clean_run(1)
        if record["event"] == "step" or not alone
    ]


def idle_without_a_new_step():
    last = {"step": -1}

    def idle(step, util):
        is_same, last["step"] = step == last["step"], step
        return 0.0 if is_same else util

    return busy(idle, eval_every=20, eval_s=200.0)


FEW, IDLE = [95.0] * 15 + [20.0, 40.0] * 18, [95.0] * 20 + [0.0] * 40
SAID = {
    "it mostly waits while steps advance": (
        Seeds(
            lambda seed: busy(lambda step, util: util * (0.4 if step >= 3000 else 1), seed=seed, records=600)
        ),
        {
            "start_step": Between(2700, 3300),
            "noticed_step": Between(3301, 6000),
            "metric": "gpu_util",
            "state": "open",
        },
    ),
    "it is busy again": (
        lambda: busy(lambda step, util: util * (0.4 if 3000 <= step < 5000 else 1), records=800),
        {"end_step": Between(4700, 5300), "resolved_step": Between(5000, 5600)},
    ),
    "a trace without steps is judged after its start-up": (
        Seeds(lambda seed: trace(400, lambda at: 0.0 if at < 35 or at > 390 else 0.43, seed=seed)),
        {
            "start_step": Between(35, 55),
            "noticed_step": Between(35, 120),
            "mean_pct": Between(35, 50),
        },
    ),
    "step records are enough where there are no others": (
        lambda: on_step_records(30.0, alone=True),
        {"noticed_step": Between(0, 800)},
    ),
    **{
        f"few samples are enough if they cover minutes, each {every_s} s": (
            samples(FEW, every_s=every_s),
            {"start_step": Between(8, 18)},
        )
        for every_s in (10.0, 30.0, 60.0)
    },
    "it does nothing while its memory is held": (samples(IDLE), {"state": "open"}),
}
SILENT = {
    "start-up and shut-down": lambda: trace(500, lambda at: 0.97 if 200 <= at < 300 else 0.0),
    "evaluations on the processor": idle_without_a_new_step,
    "a sample that is also on step records": lambda: on_step_records(5.0, alone=False),
    "a GPU that is not used": lambda: busy(lambda step, _: 0.0),
    "a fraction": lambda: busy(lambda step, _: 0.93),
    **{
        f"too few samples, each {every_s} s": samples(FEW[:20], every_s=every_s)
        for every_s in (10.0, 30.0, 60.0)
    },
    "its memory was given back": samples(IDLE, memory=[20_000.0] * 20 + [3.0] * 40),
    "the end of a run, which may take a while": samples(IDLE[:27]),
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("low_gpu_util", SAID, SILENT)
