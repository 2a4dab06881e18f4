from __future__ import annotations

import itertools
import math
import random
import re
import string

import pytest

from tests.diagnostics.synthetic_runs import (
    SYSTEM_EVERY_S,
    added,
    changed,
    clean_run,
    curve,
    evaluated,
    paused,
    run_of,
)
from tests.diagnostics.test_data_repeated import epochs
from tests.diagnostics.test_label_leak import leaking
from tests.diagnostics.test_reinforcement import explodes, rl_run
from tests.diagnostics.test_throughput import next_to_others
from tests.lengths import longer
from toolkit.telemetry.diagnostics import examiner
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE, REPORTED_BY_RUNS, finding_of, short
from toolkit.telemetry.diagnostics.examiner import Examiner
from toolkit.telemetry.diagnostics.finding import SEVERITIES
from toolkit.telemetry.diagnostics.incident import Incidents

KINDS = set(CATALOGUE) - set(REPORTED_BY_RUNS)
"""Those that runs report themselves are tested in tests/telemetry/errors/test_hang.py."""


def _from(step, value):
    return lambda at, old: value if at >= step else old


def _between(first, last, factor):
    return lambda at, old: old * factor if first <= at < last else old


def _with(losses, begin, values):
    return [*losses[:begin], *values, *losses[begin + len(values) :]]


def _leaking(records, name, per_step):
    return changed(records, name, lambda step, value: value + per_step * max(0, step - 500))


def _of_ranks(slow, part=None):
    """Ranks of which one is slow: by itself, or in a part of the step, for which the others wait in the backward."""

    def times(is_slow):
        if part is None:
            return {"sec_per_step": 1.5 if is_slow else 1.0}
        own = {} if part == "rest" else {f"time/{part}": 1.0 if is_slow else 0.5}
        return {"sec_per_step": 1.5, **own, "time/backward": 0.3 if is_slow else 0.8}

    return [
        {"event": "step", "global_step": step, "rank": rank, **times(rank == slow)}
        for step in range(1, 120)
        for rank in (0, 1, 2, 3)
    ]


def _saving(records):
    for record in records:
        if record.get("global_step", 1) % 20 == 0:
            record["time/checkpoint_save_sync"] = 9.0 if record.get("rank") == 1 else 1.0
    return records


def _ranks_with_nan(bad, *, logging=(0, 1, 2, 3)):
    """Ranks of which some are NaN: `bad(rank, step)` says which."""
    for step in range(1, 40):
        for rank in (0, 1, 2, 3):
            loss = {"train_loss": math.nan if bad(rank, step) else 1.0} if rank in logging else {}
            yield {"event": "step", "global_step": step, "rank": rank, "sec_per_step": 1.0, **loss}


def _faulty_runs():
    """Make at least one run for every sentence of the catalogue."""
    run = clean_run(1)
    losses = curve(1)
    nan, inf = math.nan, math.inf
    yield run_of(_with(losses, 200, [nan] * 100))
    yield run_of([nan] * 20)
    yield run_of(_with(losses, 200, [0.0] * 100), grad_norm=_with([1.0] * 300, 200, [nan] * 100))
    yield run_of(losses, grad_norm=_with([1.0] * 300, 200, [inf]))
    yield [{**record, "mine": None, "non_finite": {"mine": "NaN"}} for record in run_of(losses)]
    yield run_of(_with(losses, 200, [6.0] * 5))
    yield run_of(_with(losses, 200, [6.0] * 100))
    yield run_of(_with(losses, 295, [6.0] * 5))
    yield run_of([losses[0] / 9, *losses])
    noisy = curve(1, noise=0.01, first=1.0, last=1.0)
    yield run_of([*noisy[:100], *[20.0] * 6, *(1.4 * loss for loss in noisy[106:])])
    yield run_of(_with(losses, 100, [6.0] * 150))
    yield [*run_of(_with(losses, 200, [6.0] * 100)), {"event": "start", "session": 2}, *run_of(losses)]
    yield run_of(
        [loss * 1.002 ** max(0, place - 300) for place, loss in enumerate(curve(1, records=600, last=1.0))]
    )
    yield run_of(_with(curve(1, noise=0.02, first=1.0, last=1.0), 200, [1.151] * 100))
    yield run_of([-5.0 + loss for loss in _with(losses, 200, [9.0] * 100)])
    yield run_of(_with(losses, 250, [2.0] * 20), lr=[1e-5 if place < 250 else 3e-4 for place in range(300)])
    yield run_of(_with(losses, 250, [2.0] * 50), lr=[1e-5 if place < 250 else 3e-4 for place in range(300)])
    yield run_of(curve(1, records=900, first=1.0, last=1.0))
    yield run_of([2.3] * 100)
    vals = [1.0, 0.8, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4]
    yield evaluated(run_of(losses), vals, each=20)
    yield evaluated(run_of(losses), vals[2:], each=20)
    yield evaluated(run_of(losses), [1.0, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2], each=20)
    yield evaluated(run_of(losses), [1.0, 0.9, 0.9, 0.8, 0.8, 5.0, 0.8, 0.8], each=20)
    yield evaluated(run_of(losses), [1.0, 0.9, 0.9, 0.8, 0.8, 5.0], each=20)
    yield run_of(losses, grad_norm=_with([1.0] * 300, 200, [50.0] * 9))
    for first in (0, 2000):
        yield changed(changed(run, "grad_norm", _from(first, 0.0)), "train_loss", _from(first, 1.7))
    slower = changed(run, "samples_per_sec", _between(2000, 1 << 60, 0.4))
    yield slower
    yield next_to_others(slower, from_step=2000, cpu_percent=95.0)
    yield next_to_others(slower, from_step=2000, gpu_gb=20.0)
    yield changed(clean_run(1, with_rate=False), "sec_per_step", _between(2000, 1 << 60, 2.5))
    yield added(run, "data_time_s", lambda step: 0.3)
    yield changed(run, "gpu_util", _between(1000, 1 << 60, 0.3))
    yield _leaking(clean_run(1, records=900), "cpu_mem_rss_mb", 1.0)
    yield _leaking(clean_run(1, records=900), "gpu_mem_allocated", 0.01)
    yield paused(run, 2000, 900.0)
    yield [record for record in paused(run, 2000, 900.0) if record["global_step"] <= 2000]
    for begins, rate in ((1000, 0.0), (1000, 1e-12), (0, 1e-12)):
        yield changed(changed(run, "lr", _from(begins, rate)), "train_loss", _from(begins, 1.5))
    yield added(run, "loss_scale", lambda step: 65536.0 / 2 ** min(5, max(0, (step - 2000) // 50 + 1)))
    yield added(run, "loss_scale", lambda step: 65536.0 / 2 ** min(16, max(0, (step - 2000) // 10 + 1)))
    dice = random.Random(1)
    yield changed(run, "grad_norm", lambda step, norm: inf if step > 2000 and dice.random() < 0.3 else norm)
    for part in (None, "data_loading", "forward", "rest"):
        yield _of_ranks(2, part)
    yield _saving(_of_ranks(0))
    yield list(_ranks_with_nan(lambda rank, step: rank == 3 and step >= 20))
    yield list(_ranks_with_nan(lambda rank, step: step >= 20, logging=(3,)))
    yield list(_ranks_with_nan(lambda rank, step: step >= 21 or (rank == 3 and step == 20)))
    yield rl_run(kl=explodes, entropy=lambda part: 0.6 if part < 0.5 else 0.001)
    yield rl_run(length=lambda part: 200.0 if part < 0.6 else 900.0)
    yield run_of(leaking())
    yield run_of([0.0] * 40, grad_norm=[0.0] * 40)
    yield run_of(losses, lora_B_norm=[0.0] * 300)
    yield run_of(losses, lora_B_norm=[0.1] * 100 + [0.0] * 200)
    yield epochs(shuffled=False)
    yield epochs(stairs=0.3, noise=0.03)
    yield epochs(stairs=0.3, noise=0.03, shuffled=False)
    yield run_of(losses, zero_grad_share=[0.1] * 100 + [0.8] * 200)
    yield [{**run[0], "job_end_time": run[0]["time"] + 600.0}, *run[1:]]


def _names_in(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def _take_one_by_one(records):
    """Yield each finding as often as it changes and at the end, with the records, and how many were read by then."""
    examiner = Examiner()
    for place, record in enumerate(records, 1):
        yield from ((finding, records, place) for finding in examiner.take([record]))
    yield from ((finding, records, len(records)) for finding in examiner.findings())


@pytest.fixture(scope="module")
def found():
    """What is found in the faulty runs, and the kind and variant of every incident that was described."""
    described = set()

    def note(incident, *about):
        described.add((incident.kind, incident.variant))
        return finding_of(incident, *about)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(examiner, "finding_of", note)
        return [one for records in _faulty_runs() for one in _take_one_by_one(records)], described


def test_every_message_of_the_catalogue_is_produced_by_a_detector_without_gaps(found):
    findings, described = found
    texts = [text for finding, _, _ in findings for text in (finding.message, *finding.advice)]
    gaps = [text for text in texts if "?" in text or "{" in text]

    assert gaps == []
    assert {kind for kind, _ in described} == KINDS
    assert [
        (kind, variant)
        for kind, about in CATALOGUE.items()
        for variant in about.variants
        if (kind, variant) not in described and kind not in REPORTED_BY_RUNS
    ] == []


def _rises_of_every_kind():
    """Make runs whose peaks come some records after what leads to them."""
    for seed in range(longer(6, 40)):
        dice = random.Random(seed)
        begin, length, high = dice.randrange(120, 200), dice.randrange(2, 60), dice.uniform(1.5, 9.0)
        up = [1.0 + high * dice.random() * place / length for place in range(length)]
        losses = curve(seed, noise=0.05)
        losses[begin : begin + length] = [
            loss * factor for loss, factor in zip(losses[begin:], up, strict=False)
        ]
        noisy = [dice.uniform(0.8, 1.2) for _ in losses]
        norms_of = _with(
            noisy, begin, [norm * 20.0 * factor for norm, factor in zip(noisy, up, strict=False)]
        )
        vals = [1.0 - 0.02 * place for place in range(15)]
        peaked = _with(
            vals, dice.randrange(5, 12), [dice.uniform(2.0, 9.0) for _ in range(dice.randrange(1, 4))]
        )
        yield run_of(losses, grad_norm=norms_of)
        yield evaluated(run_of(curve(seed)), peaked, each=20)
        climbing = [*vals[:6], *(0.9 * 1.05**place + dice.gauss(0.0, 0.01) for place in range(9))]
        yield evaluated(run_of(curve(seed)), climbing, each=20)
        run = clean_run(seed)
        for after in (1500, 1500 + 10 * dice.randrange(1, 8)):
            run = paused(run, after, dice.uniform(400.0, 2000.0))
        yield run


_NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?"
_AT_A_STEP = re.compile(rf"(?<![\w.,-])({_NUMBER})(?: \({_NUMBER} times\))? at step ({_NUMBER})")
_BY_A_STEP = re.compile(rf"to ({_NUMBER}) within the first records, by step ({_NUMBER})")
_A_STEP_WITH = re.compile(rf"at step ({_NUMBER}) \(({_NUMBER})\)")
_SECONDS_AFTER = re.compile(rf"({_NUMBER}) s after step ({_NUMBER})")
_NOW = re.compile(
    rf"(?:it is|and is|before to) ({_NUMBER}) now|now \(({_NUMBER})\)|to ({_NUMBER}), while the training"
)
_NAMES_AT_A_STEP = re.compile(r"\{(\w+)\}(?:\{\w*times\})? at step \{(\w+)\}|at step \{(\w+)\} \(\{(\w+)\}\)")
_VALUES_AT_STEPS = {("peak", "peak_step"), ("best", "best_step"), ("lr", "lr_step"), ("now", "noticed")}


def _numbers_at_steps(message):
    """Return the numbers of a sentence that stand next to a step, each with that step."""
    found = [
        *_AT_A_STEP.findall(message),
        *_BY_A_STEP.findall(message),
        *((number, step) for step, number in _A_STEP_WITH.findall(message)),
    ]
    return [(number, int(_value(step))) for number, step in found]


def _value(text):
    return float(text.replace(",", ""))


def _seconds_after(records, step):
    before, after = (
        next(
            record["time"] for record in several if record["event"] == "step" and is_it(record["global_step"])
        )
        for several, is_it in ((records[::-1], lambda at: at <= step), (records, lambda at: at > step))
    )
    return after - before


def test_a_number_next_to_a_step_is_what_the_record_of_that_step_says(found):
    checked = set()
    rises = [one for records in _rises_of_every_kind() for one in _take_one_by_one(records)]
    for finding, records, place in [*found[0], *rises]:
        for number, step in _numbers_at_steps(finding.message):
            at_step = [
                record.get(name)
                for record in records
                if record.get("global_step") == step
                for name in (finding.metric, "lr")
            ]
            assert number in [short(value) for value in at_step if value is not None], finding.message
            checked.add(finding.kind)
        for number in filter(None, itertools.chain(*_NOW.findall(finding.message))):
            newest = next(
                record[finding.metric] for record in records[:place][::-1] if finding.metric in record
            )
            assert number == short(newest), finding.message
            checked.add(f"{finding.kind} now")
        for number, step in _SECONDS_AFTER.findall(finding.message) if not finding.is_open else ():
            seconds = _seconds_after(records, int(_value(step)))
            assert _value(number) == pytest.approx(seconds, abs=SYSTEM_EVERY_S), finding.message
            checked.add(finding.kind)

    assert checked >= {
        "spike",
        "divergence",
        "exploding_grad",
        "val_spike",
        "overfit",
        "vanishing_grad",
        "label_leak",
        "stalled",
        "divergence now",
        "overfit now",
    }


def test_only_a_number_of_which_the_step_is_known_is_next_to_a_step():
    """No sentence of any kind puts a number next to another step; that each is right is the test above."""
    found = set()
    for about in CATALOGUE.values():
        for text in (about.message, *about.variants.values(), *about.advice):
            for value, step, other_step, other in _NAMES_AT_A_STEP.findall(text):
                found.add((value or other, step or other_step))

    assert found | {("lr", "lr_step")} == _VALUES_AT_STEPS


@pytest.mark.parametrize("kind", CATALOGUE)
def test_every_kind_says_what_causes_it_and_what_to_try(kind):
    about = CATALOGUE[kind]

    assert about.severity in SEVERITIES
    assert about.title
    assert len(about.causes) >= 2
    assert len(about.advice) >= 2
    for sentence in (about.message, *about.variants.values(), *about.causes, *about.advice):
        assert sentence.endswith(".")
        assert "  " not in sentence
    assert all(_names_in(cause) == set() for cause in about.causes)


def test_a_negative_level_is_reported_without_a_ratio():
    finding = next(
        each for each, *_ in _take_one_by_one(run_of([-5.0] * 20 + [4.0] * 3)) if each.kind == "spike"
    )

    assert finding.message == "train_loss jumped from -5 to 4 at step 21."


def test_an_unknown_variant_gets_the_default_message():
    incident = Incidents().open(
        "spike", "loss", start_step=1000, noticed_step=1000, level=1.0, peak=2.0, ratio=2.0
    )
    incident.variant = "unheard of"

    assert finding_of(incident).message == "loss jumped from 1 to 2 (2 times) at step 1,000."


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (3, "3"),
        (3.0, "3"),
        (1234567, "1,234,567"),
        (0.123456, "0.1235"),
        (1234.56, "1,234.6"),
        (1.5e9, "1.5e+09"),
        (3e-9, "3e-09"),
        (-2.5, "-2.5"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_a_number_in_a_sentence_has_four_digits_that_count(number, text):
    assert short(number) == text
