from __future__ import annotations

import math
import pickle
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.diagnostics.synthetic_runs import (
    SILENT_IN_ANY_NOISE,
    added,
    changed,
    clean_run,
    curve,
    detect_one_by_one,
    evaluated,
    findings_of_clean_runs,
    paused,
    run_of,
)
from tests.lengths import longer
from tests.runfolder.plain_data import without_haste
from toolkit.telemetry.diagnostics import metric_aliases
from toolkit.telemetry.diagnostics.examiner import Examiner, examine
from toolkit.telemetry.diagnostics.incident import MOST_INCIDENTS
from toolkit.telemetry.diagnostics.policy import Policy

tries = settings(without_haste, max_examples=longer(30, 120), suppress_health_check=list(HealthCheck))

# ---------------------------------------------------------------- silence


@pytest.mark.slow
def test_clean_runs_with_the_usual_noise_give_no_finding_of_any_kind():
    quiet = [(name, findings) for noise, name, findings in findings_of_clean_runs() if noise <= 0.1]

    assert len(quiet) == longer(6, 120)
    assert [(name, finding.message) for name, findings in quiet for finding in findings] == []


@pytest.mark.slow
def test_clean_runs_give_no_false_alarm_about_speed_machine_learning_rate_gradients_or_ranks():
    runs = findings_of_clean_runs()
    alarms = [
        (name, finding.message)
        for _, name, findings in runs
        for finding in findings
        if finding.kind in SILENT_IN_ANY_NOISE
    ]

    assert len(runs) == longer(11, 240)
    assert alarms == []


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "measured"), [(0.3, 2), (0.8, 6)])
def test_clean_runs_with_much_noise_give_no_more_false_alarms_than_were_measured(noise, measured):
    noisy = [findings for of, _, findings in findings_of_clean_runs() if of == noise]
    alarms = [finding for findings in noisy for finding in findings if finding.severity != "info"]

    # A loss that varies by 80 % from record to record says little; this is how often that misleads today.
    assert len(noisy) >= longer(2, 60)
    assert len(alarms) <= measured


# ---------------------------------------------------------------- the same however the records come


def _times(begin, length, factor):
    return lambda step, value: value * factor if begin <= step < begin + length else value


def _set(begin, length, value):
    return lambda step, old: value if begin <= step < begin + length else old


FAULTS = {
    "spike": lambda records, at, dice: changed(records, "train_loss", _times(at, 60, dice.uniform(2.0, 9.0))),
    "divergence": lambda records, at, dice: changed(records, "train_loss", _times(at, 10**9, 7.0)),
    "nan": lambda records, at, dice: changed(
        records, "train_loss", _set(at, dice.choice((10, 80, 10**9)), math.nan)
    ),
    "infinite norm": lambda records, at, dice: changed(records, "grad_norm", _set(at, 20, math.inf)),
    "large norm": lambda records, at, dice: changed(records, "grad_norm", _times(at, 50, 60.0)),
    "no gradient": lambda records, at, dice: changed(
        changed(records, "grad_norm", _set(at, 10**9, 0.0)), "train_loss", _set(at, 10**9, 1.5)
    ),
    "evaluation jumps": lambda records, at, dice: changed(records, "val_loss", _times(at, 150, 5.0)),
    "evaluation rises": lambda records, at, dice: changed(
        records, "val_loss", lambda step, value: value + max(0, step - at) / 300.0
    ),
    "slow": lambda records, at, dice: changed(records, "samples_per_sec", _times(at, 10**9, 0.4)),
    "pause": lambda records, at, dice: paused(records, at // 10 * 10, 900.0),
    "below zero": lambda records, at, dice: changed(
        records, "train_loss", lambda step, value: value - 3.0 if step >= at else value
    ),
    "rewind": lambda records, at, dice: records[: at // 8] + records[at // 16 :],
    "scale": lambda records, at, dice: added(
        records, "loss_scale", lambda step: 2.0 ** max(0, 16 - max(0, step - at) // 20)
    ),
    "no learning rate": lambda records, at, dice: changed(
        changed(records, "lr", _set(at, 10**9, 0.0)), "train_loss", _set(at, 10**9, 1.5)
    ),
    "own metric": lambda records, at, dice: [
        {**record, "mine": None, "non_finite": {"mine": "NaN"}} if record["global_step"] % at < 20 else record
        for record in records
    ],
}


@st.composite
def _runs(draw):
    dice = random.Random(draw(st.integers(min_value=0, max_value=10**6)))
    records = clean_run(
        dice.randrange(10**6),
        records=draw(st.integers(min_value=5, max_value=160)),
        noise=draw(st.sampled_from((0.01, 0.1, 0.5))),
        schedule=draw(st.sampled_from(("constant", "cosine", "restarts"))),
        eval_every=draw(st.sampled_from((0, 4, 10))),
        sessions=draw(st.sampled_from((1, 1, 2))),
        with_rate=draw(st.booleans()),
    )
    for fault in draw(st.lists(st.sampled_from(sorted(FAULTS)), max_size=4)):
        records = FAULTS[fault](records, dice.randrange(100, 1200), dice)
    return records


@tries
@given(records=_runs())
def test_the_last_word_on_each_incident_is_the_one_that_counts(records):
    examiner, words = detect_one_by_one(records)
    findings = examiner.findings()

    assert findings == list(examine(records))
    assert set(words) == {finding.id for finding in findings}
    for finding in findings:
        word = words[finding.id]
        if finding.is_open:
            # Its progress is not reported at each record, but its kind and state are.
            essence = (
                "kind",
                "severity",
                "state",
                "metric",
                "start_step",
                "noticed_step",
                "repeats",
                "session",
            )
            assert all(getattr(word, name) == getattr(finding, name) for name in essence), finding
        else:
            assert word == finding


@tries
@given(records=_runs())
def test_every_finding_has_steps_of_the_run_and_a_message_without_gaps(records):
    steps = {record["global_step"] for record in records}

    for finding in examine(records):
        assert {finding.start_step, finding.noticed_step} <= steps
        assert (finding.end_step is None) == (finding.resolved_step is None) == finding.is_open
        assert finding.count >= 1
        assert "?" not in finding.message
        assert not any("?" in advice for advice in finding.advice)


# ---------------------------------------------------------------- odd records

_odd = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=5),
    st.integers(),
    st.sampled_from(
        (10**400, -(10**400), 2**63, 1e308, -1e308, 5e-324, 0, -0.0, math.nan, math.inf, -math.inf)
    ),
    st.floats(),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)
_names = st.sampled_from(
    (
        *("event", "global_step", "time", "elapsed", "session", "rank", "max_steps", "non_finite", "mine"),
        *(
            "train_loss",
            "val_loss",
            "grad_norm",
            "lr",
            "epoch",
            "sec_per_step",
            "data_time_s",
            "samples_per_sec",
        ),
        *("tokens_per_sec", "gpu_util", "cpu_mem_rss_mb", "gpu_mem_allocated", "loss_scale", "ram_used_mb"),
        *("ram_percent", "gpu/0/mem_total_gb"),
    )
)


@tries
@given(
    odd=st.lists(st.tuples(st.integers(min_value=0, max_value=120), _names, _odd), max_size=60),
    seed=st.integers(min_value=0, max_value=5),
)
def test_no_record_is_so_odd_that_the_examiner_raises(odd, seed):
    records = clean_run(seed, records=40, eval_every=10)
    for place, name, value in odd:
        records[place % len(records)] = {**records[place % len(records)], name: value}
    examiner = Examiner()

    for record in records:
        examiner.take([record])
    examiner.take([{}])

    for finding in examiner.findings():
        finding.to_fields()


# ---------------------------------------------------------------- steps, sessions, ranks


def test_the_records_of_other_ranks_are_not_mixed_in():
    losses = curve(1)
    records = []
    for record in run_of(losses):
        records.append(record)
        for rank in (1, 2):
            records.append(
                {**record, "rank": rank, "train_loss": 50.0, "grad_norm": math.nan, "val_loss": 9.0}
            )

    assert {finding.kind for finding in examine(records)} == {"rank_nan"}


def test_two_ranks_that_are_slow_one_after_the_other_are_two_incidents():
    records = [
        {
            "event": "step",
            "global_step": step,
            "rank": rank,
            "sec_per_step": 2.0 if rank == 1 + step // 130 else 1.0,
        }
        for step in range(1, 260)
        for rank in range(4)
    ]

    found = [finding for finding in examine(records) if finding.kind == "straggler"]

    assert [finding.evidence["rank"] for finding in found] == [1.0, 2.0]
    assert [finding.repeats for finding in found] == [0, 0]


def test_an_evaluation_that_counts_by_another_measure_is_no_rewind():
    losses = curve(1, noise=0.02)
    losses[200:] = [9.0] * 100
    records = run_of(losses)
    with_evals = []
    for record in records:
        with_evals.append(record)
        if record["global_step"] % 5 == 0:
            with_evals.append(
                {"event": "eval", "global_step": 1000 * record["global_step"], "accuracy": 0.5, "lr": 1.0}
            )

    (finding,) = [each for each in examine(with_evals) if each.kind == "divergence"]

    assert (finding.state, finding.count) == ("open", 100)


def test_finding_records_are_no_part_of_what_is_examined():
    records = run_of([*curve(1, records=60), *[math.nan] * 10])
    findings = list(examine(records))
    mixed = []
    for record in records:
        mixed += [
            record,
            {"event": "finding", "global_step": 1, "train_loss": math.nan, **findings[0].to_fields()},
        ]

    assert list(examine(mixed)) == findings


# ---------------------------------------------------------------- what is remembered


@pytest.mark.slow
def test_what_is_remembered_does_not_grow_with_the_run():
    dice = random.Random(1)
    noise = [math.exp(dice.gauss(0.0, 0.05)) for _ in range(997)]
    examiner = Examiner()
    sizes = {}
    records = longer(20_000, 200_000)
    for number in range(records):
        loss = noise[number % 997] * (8.0 if number % 40 < 3 and number > 40 else 1.0)
        record = {"event": "step", "global_step": number, "train_loss": loss, "grad_norm": 2.0 * loss}
        if number % 50 == 0:
            record["val_loss"] = loss
        examiner.take([record])
        if number + 1 in (records // 4, records // 2, records):
            sizes[number + 1] = len(pickle.dumps(examiner))

    findings = examiner.findings()
    assert sum(finding.repeats for finding in findings if finding.kind == "spike") > records // 200
    assert max(sizes.values()) < 1.1 * sizes[records // 4]
    for kind in {finding.kind for finding in findings}:
        assert sum(finding.kind == kind for finding in findings) <= MOST_INCIDENTS


def test_kinds_of_records_and_ranks_without_end_are_not_all_remembered():
    names = [name for name in metric_aliases._SIGNAL_OF if name != "epoch"]
    dice = random.Random(1)
    examiner = Examiner()
    for number in range(20_000):
        chosen = dice.sample(names, 6)
        examiner.take(
            [
                {
                    "event": "step",
                    "global_step": number,
                    "rank": number,
                    **dict.fromkeys(chosen, 1.0),
                    "sec_per_step": 1.0,
                }
            ]
        )

    assert len(pickle.dumps(examiner)) < 1_500_000


def test_evaluations_without_end_are_not_all_remembered():
    def size(evaluations):
        examiner = Examiner()
        examiner.take(evaluated(run_of([1.0] * evaluations), curve(1, records=evaluations), each=1))
        return len(pickle.dumps(examiner))

    assert size(4000) < 1.1 * size(1000)


# ---------------------------------------------------------------- findings that a live run reports itself


def _hang(state="open", severity="warning", **fields):
    return {
        "event": "finding",
        "session": 1,
        "id": "1-hang-global_step-7",
        "kind": "hang",
        "severity": severity,
        "metric": "global_step",
        "start_step": 7,
        "noticed_step": 7,
        "state": state,
        "message": "No step for 70 s.",
        "evidence": {"seconds": 70.0},
        **fields,
    }


def test_the_run_s_own_word_is_taken_and_its_newest_counts():
    examiner = Examiner()
    assert examiner.take([*run_of(curve(1)), _hang()]) == [], "it was reported already"
    (found,) = examiner.findings()
    examiner.take([_hang("resolved", resolved_step=9, end_step=9)])

    assert (found.kind, found.state, found.message) == ("hang", "open", "No step for 70 s.")
    assert [(each.state, each.resolved_step) for each in examiner.findings()] == [("resolved", 9)]


def test_a_hang_that_its_session_could_not_end_is_over_with_the_next_one():
    examiner = Examiner()
    examiner.take([_hang()])
    (over,) = examiner.take([{"event": "start", "session": 2}])

    assert (over.id, over.state) == ("1-hang-global_step-7", "resolved")


@pytest.mark.parametrize(
    "record",
    [
        _hang(kind="spike"),
        _hang(rank=3),
        _hang(id=None),
        _hang(kind=["hang"]),
        _hang(severity="loud"),
        {"event": "finding", "kind": "hang"},
    ],
)
def test_no_other_finding_is_taken_over(record):
    assert examine([record]) == []


def test_a_kind_that_is_off_is_not_reported_and_explains_nothing():
    assert examine([_hang()], Policy(severities={"hang": "off"})) == []
    assert examine([_hang()], Policy(severities={"hang": "critical"}))[0].severity == "critical"
    assert examine([_hang(severity="info")], Policy(severities={"hang": "critical"}))[0].severity == "info"
