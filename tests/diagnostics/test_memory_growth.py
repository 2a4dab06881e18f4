from __future__ import annotations

import math

import pytest

from tests.diagnostics.synthetic_runs import changed, clean_run, detect
from tests.lengths import longer


@pytest.mark.parametrize("seed", range(longer(2, 4)))
def test_a_process_that_grows_with_each_step_is_reported(seed):
    records = clean_run(seed, records=800)
    records = changed(records, "cpu_mem_rss_mb", lambda step, rss: rss + max(0, step - 3000))

    (finding,) = detect(records, "memory_growth")

    assert finding.metric == "cpu_mem_rss_mb"
    assert abs(finding.start_step - 3000) <= 400
    assert 4000 <= finding.noticed_step <= 6000
    assert 800 <= finding.evidence["mib_per_1k_steps"] <= 1200
    assert finding.severity == "warning"


def test_a_slow_leak_is_found_over_more_records():
    records = clean_run(1, records=4000)
    records = changed(records, "cpu_mem_rss_mb", lambda step, rss: rss + 0.1 * step)

    (finding,) = detect(records, "memory_growth")

    assert finding.noticed_step <= 20_000
    assert 80 <= finding.evidence["mib_per_1k_steps"] <= 120


def test_it_becomes_critical_when_the_machine_has_less_left_than_was_lost():
    records = clean_run(1, records=1200, total_mib=20_000.0)
    records = changed(records, "cpu_mem_rss_mb", lambda step, rss: rss + step)
    records = changed(records, "ram_percent", lambda step, percent: percent + 100 * step / 20_000)
    records = changed(records, "ram_used_mb", lambda step, used: used + step)

    (finding,) = detect(records, "memory_growth")

    assert finding.severity == "critical"
    assert "MiB are left" in finding.message


@pytest.mark.parametrize("seed", range(longer(2, 4)))
def test_gpu_memory_that_grows_below_its_sawtooth_is_reported(seed):
    records = clean_run(seed, records=1500)
    records = changed(records, "gpu_mem_allocated", lambda step, held: held + max(0, step - 2000) / 1000)

    (finding,) = detect(records, "memory_growth")

    assert finding.metric == "gpu_mem_allocated"
    assert abs(finding.start_step - 2000) <= 800


@pytest.mark.parametrize("seed", range(longer(2, 4)))
@pytest.mark.parametrize("steps", [300, 1000, 3000, 6000])
def test_caches_that_fill_up_are_no_leak(seed, steps):
    records = clean_run(seed, records=1500)
    records = changed(
        records, "cpu_mem_rss_mb", lambda step, rss: rss + 8000.0 * (1 - math.exp(-step / steps))
    )

    assert detect(records, "memory_growth") == []


@pytest.mark.parametrize(
    ("name", "change", "records"),
    [
        ("cpu_mem_rss_mb", lambda step, rss: rss + 130.0 * min(step, 90), 400),
        ("gpu_mem_allocated", lambda step, held: held + 4.0 * (step % 50) / 50, 1500),
        ("gpu_mem_allocated", lambda step, held: held + 4.0 * (step % 300) / 300, 1500),
        ("gpu_mem_allocated", lambda step, held: held + 4.0 * (step % 700) / 700, 1500),
        ("gpu_mem_allocated", lambda step, held: 20.0 + step // 2500, 1500),
    ],
    ids=["a warm-up", "teeth of 50", "teeth of 300", "teeth of 700", "peaks that step up a few times"],
)
def test_memory_that_varies_otherwise_is_no_leak(name, change, records):
    assert detect(changed(clean_run(1, records=records), name, change), "memory_growth") == []


def test_it_is_over_when_the_memory_is_given_back():
    records = clean_run(1, records=800)
    records = changed(
        records, "cpu_mem_rss_mb", lambda step, rss: rss + (2 * max(0, step - 2000) if step < 5000 else 0)
    )

    (finding,) = detect(records, "memory_growth")

    assert 4800 <= finding.end_step <= 5000
    assert 5000 <= finding.resolved_step <= 5400
