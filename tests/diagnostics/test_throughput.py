from __future__ import annotations

import pytest

from tests.diagnostics.synthetic_runs import added, changed, clean_run, detect
from tests.diagnostics.what_is_said import Between, Seeds, contract_of


def slower(records, share, *, from_step, to_step=1 << 60):
    def is_slow(step):
        return from_step <= step < to_step

    records = changed(records, "samples_per_sec", lambda step, rate: rate * share if is_slow(step) else rate)
    return changed(records, "sec_per_step", lambda step, took: took / share if is_slow(step) else took)


def next_to_others(records, *, from_step, cpu_percent=40.0, gpu_gb=4.0):
    """Return records of a machine of which other programs use more from this step on."""
    records = [
        {
            **record,
            "process_cpu_percent": 200.0,
            "cpu_percent": 40.0,
            "gpu_mem_reserved": 3.0,
            "gpu/0/mem_used_gb": 4.0,
        }
        if record["event"] == "system"
        else record
        for record in records
    ]
    for name, value in (("cpu_percent", cpu_percent), ("gpu/0/mem_used_gb", gpu_gb)):
        records = changed(records, name, lambda step, old, new=value: new if step >= from_step else old)
    late = [{"event": "environment", **found} for found in ({"cpu": {"logical": 8}}, {"data": []})]
    return [records[0], *late, *records[1:]]


def _drop_next_to_others(**others):
    records = slower(clean_run(1), 0.5, from_step=2000)
    (finding,) = detect(next_to_others(records, from_step=2000, **others), "throughput_drop")
    return finding


def test_other_programs_that_the_records_of_the_machine_show_are_named_with_what_they_use():
    on_processors, on_gpu = _drop_next_to_others(cpu_percent=95.0), _drop_next_to_others(gpu_gb=20.0)

    assert "have used 70 % of all processors since then, 15 % before" in on_processors.message
    assert "17 GB of the GPU's memory have not been the run's since then, 1 GB before" in on_gpu.message
    assert on_processors.causes == ("Another program on this machine uses what the run had for itself.",)
    assert on_gpu.causes == on_processors.causes


@pytest.mark.parametrize("others", [{}, {"cpu_percent": 60.0}, {"gpu_gb": 4.5}])
def test_no_program_is_blamed_where_those_records_do_not_show_it(others):
    finding = _drop_next_to_others(**others)

    assert "since then" not in finding.message
    assert not [text for text in finding.causes if "nother pro" in text]


def _with_a_clock_only(records, names=("samples_per_sec", "sec_per_step")):
    """Return step records without a speed, and with the seconds that their steps add up to."""
    result, elapsed, before = [], 0.0, 0
    for record in records:
        if record["event"] != "step":
            continue
        elapsed += record["sec_per_step"] * (record["global_step"] - before)
        before = record["global_step"]
        kept = {name: value for name, value in record.items() if name not in names}
        result.append({**kept, "elapsed_s": elapsed})
    return result


def _rate(by, **about):
    return changed(clean_run(1, **about), "samples_per_sec", lambda step, rate: rate * by(step))


def _time(by, records=None):
    return changed(records or clean_run(1), "sec_per_step", lambda step, took: took * by(step))


def _averaged():
    """A running average of the speed."""
    elapsed, records = 0.0, []
    for step in range(1, 801):
        elapsed += 0.5 if step < 250 else 1.5
        records.append({"event": "step", "global_step": step, "iters_per_sec_avg": step / elapsed})
    return records


def _epochs(speeds, *, name="epoch_time_s", usual_s=100.0, **fields):
    """One record for each epoch, with the time that it took."""
    return [
        {"event": "step", "global_step": number, name: usual_s / speed, **fields}
        for number, speed in enumerate(speeds, 1)
    ]


def _sinking(log_every):
    speeds = [1000.0] * 300 + [1000.0 - 2.0 * step for step in range(200)] + [600.0] * 500
    return [
        {"event": "step", "global_step": log_every * number, "samples_per_sec": speed}
        for number, speed in enumerate(speeds)
    ]


def _quick(sec_per_step, **about):
    return slower(clean_run(1, sec_per_step=sec_per_step, **about), 0.5, from_step=2000)


SHORT_STEPS = _epochs([1.0] * 14 + [0.6] * 8, name="step_time_s", usual_s=0.05)
HALF = {"start_step": Between(1960, 2040), "lost_pct": Between(38, 62)}
SAID = {
    **{
        f"it falls and stays in noise of {noise}, {'with' if rate else 'without'} a rate": (
            Seeds(
                lambda seed, about=(noise, rate): slower(
                    clean_run(seed, speed_noise=about[0], with_rate=about[1], eval_every=15),
                    0.5,
                    from_step=2000,
                ),
                2,
                5,
            ),
            {
                **HALF,
                "noticed_step": Between(2190, 2310),
                "metric": "samples_per_sec" if rate else "sec_per_step",
                "state": "open",
            },
        )
        for noise in (0.01, 0.1, 0.2)
        for rate in (True, False)
    },
    "a clock is enough": (
        lambda: _with_a_clock_only(slower(clean_run(1, speed_noise=0.1), 0.5, from_step=2000)),
        {**HALF, "metric": "elapsed_s"},
    ),
    "a step time counts more than a clock": (
        lambda: _with_a_clock_only(slower(clean_run(1), 0.5, from_step=2000), ["samples_per_sec"]),
        {"metric": "sec_per_step"},
    ),
    "a noisy speed needs more records": (
        lambda: slower(clean_run(4, speed_noise=0.5, records=600), 0.4, from_step=3000),
        {"start_step": Between(2900, 3100), "noticed_step": Between(3000, 3800)},
    ),
    "a smaller drop that is beyond doubt": (
        Seeds(lambda seed: slower(clean_run(seed, records=600), 0.8, from_step=3000), 2, 5),
        {"start_step": Between(2900, 3100), "noticed_step": Between(3900, 4300)},
    ),
    "the speed is back": (
        lambda: slower(clean_run(1), 0.6, from_step=2000, to_step=2800),
        {"end_step": Between(2700, 2900), "resolved_step": Between(2700, 3100)},
    ),
    "steps of two milliseconds": (lambda: _quick(0.002, with_rate=False), HALF),
    "steps of half a millisecond, with a rate": (lambda: _quick(0.0005), HALF),
    "a running average": (_averaged, {"state": "open", "noticed_step": Between(251, 499)}),
    **{
        f"{slow} epochs take longer after {fast}": (
            _epochs([1.0 + 0.03 * (number % 3) for number in range(fast)] + [0.65] * slow),
            {"metric": "epoch_time_s", "start_step": fast + 1, "lost_pct": Between(30, 40)},
        )
        for fast, slow in ((12, 8), (20, 12), (45, 30))
    },
    **{
        f"it sinks slowly and stays, logged each {each}": (_sinking(each), {"lost_pct": 40})
        for each in (1, 50)
    },
}
SILENT = {
    "now and then": lambda: _time(
        lambda step: 30.0 if step % 70 == 0 else 1.0, _rate(lambda step: 1 / 30 if step % 70 == 0 else 1.0)
    ),
    "a schedule": lambda: _rate(lambda step: 1 - step / 10_000, records=800),
    "a larger batch": lambda: _time(lambda step: 4 if step > 2000 else 1),
    "longer samples, as many tokens": lambda: added(
        _rate(lambda step: 0.25 if step > 2000 else 1), "tokens_per_sec", lambda step: 9000.0
    ),
    "another machine for the next session": lambda: [
        {**record, "samples_per_sec": record["samples_per_sec"] / record["session"]}
        if "samples_per_sec" in record
        else record
        for record in clean_run(1, sessions=2)
    ],
    "a fast start": lambda: _rate(lambda step: 2 if step < 400 else 1),
    **{
        f"fifteen slow records from step {first} on": lambda first=first: slower(
            clean_run(1), 0.5, from_step=first, to_step=first + 150
        )
        for first in range(1950, 2060, 10)
    },
    "a clock": lambda: _with_a_clock_only(clean_run(1, speed_noise=0.1)),
    "steps of half a millisecond": lambda: _quick(0.0005, with_rate=False),
    "two long epochs": _epochs([*[1.0] * 12, 0.65, 0.65, *[1.0] * 12]),
    "a second of short steps": [
        {**record, "time": 0.1 * number} for number, record in enumerate(SHORT_STEPS)
    ],
    "short steps, where only their time says how long they were": SHORT_STEPS,
}

test_one_finding_has_these_facts, test_other_changes_of_the_speed_are_not_reported = contract_of(
    "throughput_drop", SAID, SILENT
)
