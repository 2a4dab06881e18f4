"""Which steps get a record, what is on it, and that no step goes unseen."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from tests.records import read_records
from tests.telemetry.logged import Arriving, describe_at_once, make_logger, records_of
from toolkit.telemetry.logger.records.device_scalars import DeviceScalars, PendingScalar
from toolkit.telemetry.logger.writing.pipeline import RecordPipeline

tries = settings(max_examples=longer(12, 25), deadline=None)


@pytest.fixture(autouse=True, scope="module")
def _a_machine_that_is_described_at_once():
    with pytest.MonkeyPatch.context() as patch:
        describe_at_once(patch, {})
        yield


@pytest.fixture
def make(tmp_path, clock, close_at_end):
    return lambda **options: close_at_end(make_logger(tmp_path, clock=clock, **options))


def steps_of(log):
    return [record["global_step"] for record in records_of(log, "step")]


# ---------------------------------------------------------------- which steps are written


@pytest.mark.parametrize(
    ("log_every", "first", "count", "written"),
    [
        (1, 0, 5, [0, 1, 2, 3, 4]),
        (10, 0, 31, [0, 10, 20, 30]),
        (10, 1, 31, [1, 10, 20, 30]),
        (10, 7, 20, [7, 10, 20]),
        (7, 0, 22, [0, 7, 14, 21]),
        (4095, 0, 8192, [0, 4095, 8190]),
        (4096, 0, 8200, [0, 4096, 8192]),
        (5000, 0, 15_001, [0, 5000, 10_000, 15_000]),
        (1_000_000, 999_990, 20, [999_990, 1_000_000]),
    ],
)
def test_the_first_step_is_written_and_then_those_that_are_due(make, log_every, first, count, written):
    log = make(log_every=log_every)
    for step in range(first, first + count):
        log.log_step(step, train_loss=0.5)

    assert steps_of(log) == written


def test_a_loop_that_counts_in_strides_is_written_where_it_passes_a_due_step(make):
    log = make(log_every=10)
    for step in range(0, 100, 7):
        log.log_step(step, train_loss=0.5)

    assert steps_of(log) == [0, 14, 21, 35, 42, 56, 63, 70, 84, 91]


def test_a_loop_that_goes_back_is_seen_at_once(make):
    log = make(log_every=10)
    for step in [*range(58), *range(50, 72)]:
        log.log_step(step, train_loss=0.5)

    assert steps_of(log) == [0, 10, 20, 30, 40, 50, 50, 60, 70]


def test_a_step_that_is_logged_in_two_calls_is_written_in_both(make):
    log = make(log_every=10)
    for step in range(11):
        log.log_step(step, train_loss=0.5)
        log.log_step(step, accuracy=step / 10)

    found = records_of(log, "step")
    assert [record["global_step"] for record in found] == [0, 0, 10, 10]
    assert ("train_loss" in found[2], found[3]["accuracy"]) == (True, 1.0)


@pytest.mark.parametrize(
    ("given", "step"),
    [(np.int64(10), 10), (torch.tensor(10), 10), (10.0, 10), (np.array([10]), 10)],
)
def test_a_step_of_any_make_is_a_number(make, given, step):
    log = make(log_every=5)
    log.log_step(given, train_loss=0.5)

    assert steps_of(log) == [step]


@pytest.mark.parametrize("given", ["ten", math.nan, math.inf, object(), [1, 2], b"x"])
def test_a_step_that_is_no_number_does_not_lose_its_record(make, given):
    log = make(log_every=1)
    log.log_step(4, train_loss=0.5)
    log.log_step(given, train_loss=0.25)
    found = records_of(log, "step")

    assert [record["train_loss"] for record in found] == [0.5, 0.25]
    assert found[1]["global_step"] == 5
    assert found[1]["x_global_step"].startswith(("<", "ten", "nan", "inf"))


# ---------------------------------------------------------------- folding


@tries
@given(
    series=st.lists(st.floats(0.4, 0.6), min_size=1, max_size=60),
    log_every=st.integers(1, 12),
    make_value=st.sampled_from([float, np.float64, lambda number: torch.tensor(number, dtype=torch.float64)]),
)
def test_every_step_is_in_exactly_one_record(tmp_path_factory, series, log_every, make_value):
    log = make_logger(tmp_path_factory.mktemp("logs"), log_every=log_every)
    for step, loss in enumerate(series):
        log.log_step(step, train_loss=make_value(loss))
    log.close()
    found = records_of(log, "step")
    at = 0
    for record in found:
        own = record["global_step"]
        folded = series[at : own + 1]

        assert record.get("steps_folded", 0) == len(folded) - 1
        assert record["train_loss"] == series[own]
        if len(folded) > 1:
            assert record["train_loss_mean"] == pytest.approx(math.fsum(folded) / len(folded), rel=1e-12)
            assert (record["train_loss_min"], record["train_loss_max"]) == (min(folded), max(folded))
        at = own + 1

    assert at == len(series)


def test_time_spent_after_the_last_step_does_not_count_as_a_steps(make):
    log = make(log_every=10)
    for step in range(14):
        log.log_step(step, train_loss=0.5)
        clock_of(log).advance(0.25)
    clock_of(log).advance(60.0)
    log.close()

    assert records_of(log, "step")[-1].get("sec_per_step", 0.25) < 1.0


def test_a_step_that_is_written_out_of_turn_has_all_that_was_given(make):
    log = make(log_every=10)
    for step in range(6):
        log.log_step(step, train_loss=math.nan if step == 5 else 0.5, lr=1e-4, grad_norm=1.5, accuracy=0.75)
    last = records_of(log, "step")[-1]

    assert (last["global_step"], last["lr"], last["grad_norm"], last["accuracy"]) == (5, 1e-4, 1.5, 0.75)


@pytest.mark.parametrize("count", [4095, 4096, 4097, 4098, 8192, 8193])
def test_the_rest_is_written_however_many_steps_it_is(make, count):
    log = make(log_every=1_000_000)
    for step in range(count):
        log.log_step(step, train_loss=0.5)
    log.close()
    found = records_of(log, "step")

    assert sum(1 + record.get("steps_folded", 0) for record in found) == count
    assert found[-1]["global_step"] == count - 1


def test_what_is_logged_next_to_the_loss_of_a_folded_step_is_not_fetched(make):
    class Expensive:
        def __float__(self):
            raise AssertionError("asked for")

    log = make(log_every=10)
    log.log_step(0, train_loss=0.5)
    for step in range(1, 10):
        log.log_step(step, train_loss=torch.tensor(0.5), extra=Expensive())
        log.log_step(step, extra=Expensive())

    assert log.guard.counts == {}


# ---------------------------------------------------------------- written out of turn


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("make_value", [float, np.float32, torch.tensor])
@pytest.mark.parametrize("log_every", [1, 10, 10_000])
def test_a_loss_that_is_not_finite_is_written_at_once(make, loss, make_value, log_every):
    log = make(log_every=log_every)
    for step in range(8):
        log.log_step(step, train_loss=make_value(loss) if step == 5 else 0.5)
    found = next(record for record in records_of(log, "step") if record["global_step"] == 5)

    assert found["train_loss"] is None
    assert found["nan_inf_detected"] is True
    assert (
        found["non_finite"]["train_loss"] == {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(loss)]
    )
    if log_every > 8:
        assert (found["steps_folded"], found["train_loss_mean"]) == (4, 0.5)


@pytest.mark.parametrize("make_value", [float, torch.tensor])
@pytest.mark.parametrize("log_every", [1, 10, 10_000])
def test_a_loss_that_jumps_is_written_at_once_and_marked(make, make_value, log_every):
    log = make(log_every=log_every)
    for step in range(200):
        log.log_step(step, train_loss=make_value(50.0) if step == 155 else 0.5 + step % 7 / 100)
        if log_every == 10_000 and step == 100:
            # What is usual is learnt when losses are summed up, which in so long an interval is late.
            log._gate.take(None)
    found = [record for record in records_of(log, "step") if record.get("loss_jump")]

    assert [record["global_step"] for record in found] == [155]
    assert found[0]["train_loss"] == 50.0


def test_another_number_that_is_not_finite_is_named_on_a_due_record(make):
    log = make(log_every=1)
    log.log_step(1, train_loss=0.5, grad_norm=math.inf, extra=torch.tensor(math.nan))
    (found,) = records_of(log, "step")

    assert found["nan_inf_detected"] is True
    assert found["non_finite"] == {"grad_norm": "Infinity", "extra": "NaN"}
    assert found["train_loss"] == 0.5


# ---------------------------------------------------------------- what is on a record


def test_a_record_has_what_was_given_and_no_more_than_is_known(make):
    log = make(log_every=1)
    log.log_step(3, train_loss=0.5, lr=1e-4, grad_norm=1.5, epoch=2, gpu_mem_allocated=3.5, accuracy=0.75)
    (found,) = records_of(log, "step")

    given = {"global_step": 3, "train_loss": 0.5, "lr": 1e-4, "grad_norm": 1.5, "epoch": 2, "accuracy": 0.75}
    ours = {"event": "step", "time": 1_700_000_000.0, "elapsed": 0.0, "seq": 1, "session": 1}
    assert found == {**ours, **given, "gpu_mem_allocated": 3.5, "nan_inf_detected": False}


def test_a_record_is_stamped_with_the_time_of_the_call(make):
    log = make(log_every=1)
    for step in range(3):
        log.log_step(step, train_loss=0.5)
        clock_of(log).advance(2.0)
    found = records_of(log, "step")

    assert [record["time"] for record in found] == [1_700_000_000.0, 1_700_000_002.0, 1_700_000_004.0]
    assert [record["elapsed"] for record in found] == [0.0, 2.0, 4.0]


def clock_of(log):
    return log._clock


def test_speed_is_absent_where_it_cannot_be_known(make):
    log = make(log_every=10)
    for step in [0, 10, 10, 3, 20]:
        log.log_step(step, train_loss=0.5)
        clock_of(log).advance(1.0)
    found = records_of(log, "step")

    assert [record.get("sec_per_step") for record in found] == [None, 0.1, None, None, pytest.approx(1 / 17)]
    assert all("samples_per_sec" not in record for record in found)


# ---------------------------------------------------------------- numbers that a device has yet to deliver


class OnDevice:
    """A number on a device, for as far as we look at it."""

    __torch_function__ = None

    def __init__(self, place):
        self.place = place


@pytest.fixture
def device(monkeypatch):
    memory = Arriving()
    monkeypatch.setattr(DeviceScalars, "take", lambda self, value: PendingScalar(memory, value.place, "f32"))
    return memory


def test_losses_on_a_device_are_folded_in_the_order_of_the_steps(make, device):
    log = make(log_every=10)
    for step in range(21):
        log.log_step(step, train_loss=OnDevice(step))
    log.flush(1.0)
    path = log.run_folder / "metrics.jsonl"
    assert not path.exists() or read_records(path, "step") == []

    device.values = {step: 1.0 + step for step in range(21)}
    log.log_step(21, train_loss=OnDevice(20))
    found = records_of(log, "step")

    assert [record["global_step"] for record in found] == [0, 10, 20]
    assert [record.get("steps_folded") for record in found] == [None, 9, 9]
    assert (found[2]["train_loss"], found[2]["train_loss_mean"]) == (21.0, 16.5)


def test_a_loss_on_a_device_that_is_not_finite_is_written_whatever_the_interval(make, device):
    device.values = {step: math.nan if step == 5 else 0.5 for step in range(9)}
    log = make(log_every=10)
    for step in range(9):
        log.log_step(step, train_loss=OnDevice(step))

    assert steps_of(log) == [0, 5]


def test_the_rest_that_a_device_has_yet_to_deliver_is_written_at_the_end(make, device):
    log = make(log_every=10)
    for step in range(15):
        log.log_step(step, train_loss=OnDevice(step))
    device.values = {step: 1.0 + step for step in range(15)}
    log.close()
    found = records_of(log, "step")

    assert [record["global_step"] for record in found] == [0, 10, 14]
    assert (found[-1]["steps_folded"], found[-1]["train_loss"]) == (3, 15.0)


def test_what_a_device_never_delivers_is_noted_and_its_step_kept(make, device, monkeypatch):
    # It would be waited for during a good part of the time that the end may take, which is long here.
    monkeypatch.setattr(RecordPipeline, "wait_for_devices", lambda *_: None)
    log = make(log_every=1)
    log.log_step(1, train_loss=OnDevice(0), lr=0.5)
    log.log_step(2, train_loss=0.25)
    log.close()
    first, second = records_of(log, "step")

    assert (first["lr"], list(first["unencodable"])) == (0.5, ["train_loss"])
    assert second["train_loss"] == 0.25


@pytest.mark.parametrize("value", [torch.tensor(1.5), np.float32(1.5), "text", {"a": 1}, object()])
def test_the_sign_of_life_is_given_whatever_was_logged(make, value):
    log = make(log_every=1)
    log.log_step(1, train_loss=0.5, grad_norm=value, lr=value)
    log.close()

    assert all("is no number" in kind for kind in log.guard.counts)
    manifest = json.loads((log.run_folder / "run.json").read_text())
    assert manifest["status"] == "finished"
    assert manifest["summary"]["train_loss"] == 0.5
    assert "<" not in str(manifest["summary"])


# ---------------------------------------------------------------- metrics of steps without a record


def test_a_metric_that_only_some_steps_carry_is_on_the_next_record_with_its_extremes(make):
    log = make(log_every=10)
    norms = {}
    for step in range(1, 202):
        given = {}
        if step % 4 == 0:
            norms[step] = given["grad_norm"] = 1e9 if step == 88 else 1.0 + step % 3
        log.log_step(step, train_loss=0.5, lr=1e-4, **given)
    found = records_of(log, "step")
    since = 1

    assert len(found) == 21
    for record in found[1:]:
        own = record["global_step"]
        seen = [norm for step, norm in norms.items() if since < step <= own]
        assert record["grad_norm"] == seen[-1]
        assert (record["grad_norm_min"], record["grad_norm_max"]) == (min(seen), max(seen))
        assert record["grad_norm_mean"] == pytest.approx(sum(seen) / len(seen))
        assert record["lr"] == 1e-4
        assert "lr_min" not in record, "it did not vary"
        since = own
    assert found[9]["grad_norm_max"] == 1e9


@pytest.mark.parametrize(
    "make_value",
    [float, np.float32, torch.tensor, lambda value: torch.tensor(value, requires_grad=True) * 1],
)
@pytest.mark.parametrize("name", ["grad_norm", "accuracy", "loss/l1", "sec_per_step"])
def test_metrics_of_any_make_and_name_are_folded(make, make_value, name):
    log = make(log_every=10)
    for step in range(11):
        given = {name: make_value(float(step))} if step in (3, 4, 7) else {}
        log.log_step(step, train_loss=0.5, **given)
    last = records_of(log, "step")[-1]

    assert (last[name], last[f"{name}_min"], last[f"{name}_max"]) == (7.0, 3.0, 7.0)
    assert last[f"{name}_mean"] == pytest.approx(14 / 3)
    assert not any(isinstance(value, torch.Tensor) for value in vars_of(log._gate.metrics))


def vars_of(metrics):
    for row in metrics.rows:
        yield from row[:-1]
        yield from row[-1].values()
    for folded in metrics.sums.values():
        yield from (folded.last, folded.low, folded.high, folded.total)


def test_what_is_no_usual_number_loses_no_other_value_and_no_extreme(make):
    log = make(log_every=10)
    for step, value in enumerate([1.0, math.nan, 3.0, -math.inf, 2.0]):
        huge = 10**400 if step == 2 else step
        log.log_step(step, train_loss=0.5, lr=1e-4 * (1 + step), mine=value, huge=huge)
    log.close()
    last = records_of(log, "step")[-1]

    assert (last["mine"], last["huge"], last["lr"], last["lr_max"]) == (2.0, 4, 5e-4, 5e-4)
    assert last["non_finite"].items() >= {"mine_min": "-Infinity", "mine_max": "NaN"}.items()


def test_a_callers_own_metric_is_not_replaced_by_one_of_ours(make):
    log = make(log_every=10)
    for step in range(11):
        log.log_step(step, train_loss=0.5, reward=float(step), reward_mean=-1.0 - step)
    last = records_of(log, "step")[-1]

    assert (last["reward"], last["reward_mean"], last["reward_max"]) == (10.0, -11.0, 10.0)


def test_steps_without_a_loss_are_not_left_out_at_the_end(make):
    log = make(log_every=10)
    for step in range(1, 5):
        log.log_step(step, grad_norm=float(step))
    log.close()

    assert [record["grad_norm"] for record in records_of(log, "step")] == [1.0, 4.0]


def test_a_flag_of_a_folded_step_is_not_lost(make):
    log = make(log_every=10)
    for step in range(11):
        log.log_step(step, train_loss=0.5, nan_inf_detected=step == 5, skipped=step == 6)
    last = records_of(log, "step")[-1]

    assert last["nan_inf_detected"] is True
    assert (last["skipped"], last["skipped_max"], last["skipped_mean"]) == (False, 1, pytest.approx(0.1))


def test_what_is_folded_is_bounded_however_far_apart_the_records_are(make):
    log = make(log_every=1_000_000)
    for step in range(3_000):
        log.log_step(step, train_loss=0.5, lr=step * 1e-6, **{f"of_step_{step}": 1.0})
        many = {f"m{place}": float(step) for place in range(40)} if step % 100 == 0 else {}
        log.log_step(step, **many)

    assert len(log._gate.metrics.rows) <= 256
    assert len(log._gate.metrics.sums) <= 1_000

    log.close()
    last = records_of(log, "step")[-1]
    assert last["lr"] == pytest.approx(2_999 * 1e-6)
    assert last["m39_max"] == 2_900.0
    assert log.guard.counts == {}


def test_more_tensors_than_a_few_are_fetched_only_where_they_are_written(make):
    log = make(log_every=10)
    for step in range(11):
        log.log_step(step, train_loss=0.5, **{f"t{place}": torch.tensor(float(step)) for place in range(20)})
    last = records_of(log, "step")[-1]

    assert (last["t0_min"], last["t0"]) == (1.0, 10.0)
    assert ("t19_min" in last, last["t19"]) == (False, 10.0)
