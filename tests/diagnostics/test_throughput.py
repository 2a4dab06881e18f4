from __future__ import annotations

import pytest

from tests.diagnostics.synthetic_runs import added, changed, clean_run, detect
from tests.lengths import longer


def _slower(records, share, *, from_step, to_step=1 << 60):
    def is_slow(step):
        return from_step <= step < to_step

    records = changed(records, "samples_per_sec", lambda step, rate: rate * share if is_slow(step) else rate)
    return changed(records, "sec_per_step", lambda step, took: took / share if is_slow(step) else took)


@pytest.mark.parametrize("seed", range(longer(2, 5)))
@pytest.mark.parametrize("speed_noise", [0.01, 0.1, 0.2])
@pytest.mark.parametrize("with_rate", [True, False])
def test_a_speed_that_falls_and_stays_is_one_incident(seed, speed_noise, with_rate):
    records = clean_run(seed, speed_noise=speed_noise, with_rate=with_rate, eval_every=15)
    records = _slower(records, 0.5, from_step=2000)

    (finding,) = detect(records, "throughput_drop")

    assert abs(finding.start_step - 2000) <= 40
    assert 2190 <= finding.noticed_step <= 2310
    assert finding.metric == ("samples_per_sec" if with_rate else "sec_per_step")
    assert finding.is_open
    assert abs(finding.evidence["lost_pct"] - 50) < 12


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
    records = _slower(clean_run(1), 0.5, from_step=2000)
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


def test_a_clock_is_enough():
    records = clean_run(1, speed_noise=0.1)

    (finding,) = detect(_with_a_clock_only(_slower(records, 0.5, from_step=2000)), "throughput_drop")

    assert abs(finding.start_step - 2000) <= 40
    assert finding.metric == "elapsed_s"
    assert abs(finding.evidence["lost_pct"] - 50) < 12
    assert detect(_with_a_clock_only(records), "throughput_drop") == []


def test_a_step_time_counts_more_than_a_clock():
    records = _with_a_clock_only(_slower(clean_run(1), 0.5, from_step=2000), names=("samples_per_sec",))

    (finding,) = detect(records, "throughput_drop")

    assert finding.metric == "sec_per_step"


def test_a_noisy_speed_needs_more_records_and_is_found():
    records = _slower(clean_run(4, speed_noise=0.5, records=600), 0.4, from_step=3000)

    (finding,) = detect(records, "throughput_drop")

    assert abs(finding.start_step - 3000) <= 100
    assert finding.noticed_step <= 3800


@pytest.mark.parametrize("seed", range(longer(2, 5)))
def test_a_smaller_drop_is_reported_when_it_is_beyond_doubt(seed):
    records = _slower(clean_run(seed, records=600), 0.8, from_step=3000)

    (finding,) = detect(records, "throughput_drop")

    assert abs(finding.start_step - 3000) <= 100
    assert 3900 <= finding.noticed_step <= 4300


def test_it_is_over_when_the_speed_is_back():
    (finding,) = detect(_slower(clean_run(1), 0.6, from_step=2000, to_step=2800), "throughput_drop")

    assert abs(finding.end_step - 2800) <= 100
    assert finding.resolved_step <= 3100


def _rate(by, **about):
    return changed(clean_run(1, **about), "samples_per_sec", lambda step, rate: rate * by(step))


def _time(by, records=None):
    return changed(records or clean_run(1), "sec_per_step", lambda step, took: took * by(step))


NOT_SLOWER = {
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
}


@pytest.mark.parametrize("run", NOT_SLOWER.values(), ids=NOT_SLOWER)
def test_other_changes_of_the_speed_are_not_reported(run):
    assert detect(run(), "throughput_drop") == []


@pytest.mark.parametrize("first", range(1950, 2060, 10))
def test_fifteen_slow_records_in_a_row_are_not_reported(first):
    assert detect(_slower(clean_run(1), 0.5, from_step=first, to_step=first + 150), "throughput_drop") == []


def test_steps_that_are_over_within_a_millisecond_are_not_judged_by_their_time():
    def run(sec_per_step, **about):
        return _slower(clean_run(1, sec_per_step=sec_per_step, **about), 0.5, from_step=2000)

    assert detect(run(0.0005, with_rate=False), "throughput_drop") == []
    assert len(detect(run(0.002, with_rate=False), "throughput_drop")) == 1
    assert len(detect(run(0.0005), "throughput_drop")) == 1


def test_a_drop_is_found_in_a_running_average_of_the_speed():
    elapsed, records = 0.0, []
    for step in range(1, 801):
        elapsed += 0.5 if step < 250 else 1.5
        records.append({"event": "step", "global_step": step, "iters_per_sec_avg": step / elapsed})

    [finding] = detect(records, "throughput_drop")

    assert finding.is_open
    assert 250 < finding.noticed_step < 500


def _epochs(speeds, *, name="epoch_time_s", usual_s=100.0, **fields):
    """One record for each epoch, with the time that it took."""
    return [
        {"event": "step", "global_step": number, name: usual_s / speed, **fields}
        for number, speed in enumerate(speeds, 1)
    ]


@pytest.mark.parametrize(("fast", "slow"), [(12, 8), (20, 12), (45, 30)])
def test_an_epoch_that_takes_longer_from_some_epoch_on_is_reported(fast, slow):
    speeds = [1.0 + 0.03 * (number % 3) for number in range(fast)] + [0.65] * slow

    (finding,) = detect(_epochs(speeds), "throughput_drop")

    assert finding.metric == "epoch_time_s"
    assert finding.start_step == fast + 1
    assert 30 <= finding.evidence["lost_pct"] <= 40
    assert detect(_epochs(speeds[:fast]), "throughput_drop") == []
    assert detect(_epochs([*speeds[: fast + 2], *speeds[:fast]]), "throughput_drop") == [], "two long epochs"


def test_a_short_run_of_short_steps_is_not_judged_by_a_second_of_them():
    speeds = [1.0] * 14 + [0.6] * 8
    records = _epochs(speeds, name="step_time_s", usual_s=0.05)
    timed = [{**record, "time": 0.1 * number} for number, record in enumerate(records)]

    assert detect(timed, "throughput_drop") == []
    assert detect(records, "throughput_drop") == [], "nor where only the time of a step says how long it was"


@pytest.mark.parametrize("log_every", [1, 50])
def test_a_speed_that_sinks_slowly_and_stays_is_reported_once(log_every):
    speeds = [1000.0] * 300 + [1000.0 - 2.0 * step for step in range(200)] + [600.0] * 500
    records = [
        {"event": "step", "global_step": log_every * number, "samples_per_sec": speed}
        for number, speed in enumerate(speeds)
    ]

    (finding,) = detect(records, "throughput_drop")

    assert finding.evidence["lost_pct"] == 40
