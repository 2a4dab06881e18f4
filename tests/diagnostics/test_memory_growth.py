from __future__ import annotations

import math

from tests.diagnostics.synthetic_runs import changed, clean_run
from tests.diagnostics.what_is_said import Between, Saying, Seeds, contract_of

RSS, GPU = "cpu_mem_rss_mb", "gpu_mem_allocated"


def growing(name, by, seed=1, *, records=1500, **about):
    """A run in which one memory holds `by(step)` more."""
    return changed(clean_run(seed, records=records, **about), name, lambda step, held: held + by(step))


def almost_full():
    run = growing(RSS, lambda step: step, records=1200, total_mib=20_000.0)
    run = changed(run, "ram_percent", lambda step, percent: percent + 100 * step / 20_000)
    return changed(run, "ram_used_mb", lambda step, used: used + step)


SAID = {
    "a process that grows with each step": (
        Seeds(lambda seed: growing(RSS, lambda step: max(0, step - 3000), seed, records=800), 2, 4),
        {
            "metric": RSS,
            "start_step": Between(2600, 3400),
            "noticed_step": Between(4000, 6000),
            "mib_per_1k_steps": Between(800, 1200),
            "severity": "warning",
        },
    ),
    "a slow leak over more records": (
        lambda: growing(RSS, lambda step: 0.1 * step, records=4000),
        {"noticed_step": Between(0, 20_000), "mib_per_1k_steps": Between(80, 120)},
    ),
    "a leak of a short run, which fills no later block": (
        lambda: growing(RSS, lambda step: 0.4 * step, records=500),
        {"noticed_step": Between(3000, 5000), "mib_per_1k_steps": Between(350, 450)},
    ),
    "the machine has less left than was lost": (
        almost_full,
        {"severity": "critical", "message": Saying("MiB are left")},
    ),
    "GPU memory that grows below its sawtooth": (
        Seeds(lambda seed: growing(GPU, lambda step: max(0, step - 2000) / 1000, seed), 2, 4),
        {"metric": GPU, "start_step": Between(1200, 2800)},
    ),
    "the memory is given back": (
        lambda: growing(RSS, lambda step: 2 * max(0, step - 2000) if step < 5000 else 0, records=800),
        {"end_step": Between(4800, 5000), "resolved_step": Between(5000, 5400)},
    ),
}
SILENT = {
    **{
        f"caches that fill up in {steps} steps": Seeds(
            lambda seed, steps=steps: growing(RSS, lambda step: 8000.0 * (1 - math.exp(-step / steps)), seed),
            2,
            4,
        )
        for steps in (300, 1000, 3000, 6000)
    },
    **{
        f"teeth of {length}": lambda length=length: growing(GPU, lambda step: 4.0 * (step % length) / length)
        for length in (50, 300, 700)
    },
    "a warm-up": lambda: growing(RSS, lambda step: 130.0 * min(step, 90), records=400),
    "peaks that step up a few times": lambda: changed(
        clean_run(1, records=1500), GPU, lambda step, held: 20.0 + step // 2500
    ),
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("memory_growth", SAID, SILENT)
