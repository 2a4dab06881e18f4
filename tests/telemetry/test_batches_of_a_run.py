"""`log.batch`: which samples each step was trained on."""

import json

import pytest

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.diagnostics.history import diagnose
from toolkit.telemetry.logger.records.batch_values import row_of
from toolkit.telemetry.logger.writing import batch_writer
from toolkit.telemetry.runfolder.evidence.batches import NO_STEP, read_batches


@pytest.fixture
def log(tmp_path):
    with TelemetryLogger("r", tmp_path, quiet=True, system=False, log_every=10) as log:
        yield log


def _records(log, event):
    lines = (log.run_folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == event]


def test_each_batch_gets_the_step_that_is_logged_next(log):
    for step in range(1, 31):
        for part in range(2):
            log.batch([step, part])
        log.log_step(step, train_loss=0.5)
    log.batch([99])
    log.close()

    found = read_batches(log.run_folder)

    # The last one was never trained, as far as the logger knows.
    assert list(found.step) == [*(step for step in range(1, 31) for _ in range(2)), NO_STEP]
    assert found.ids(5) == [3, 1]


def test_batches_between_two_logged_steps_are_spread_where_that_is_clear(log):
    log.batch([0])
    log.log_step(10, train_loss=0.5)
    for number in range(20):
        log.batch([number])
    log.log_step(20, train_loss=0.5)
    for number in range(3):
        log.batch([number])
    log.log_step(30, train_loss=0.5)
    log.flush()

    found = read_batches(log.run_folder)

    assert list(found.step)[:6] == [10, 11, 11, 12, 12, 13]
    assert list(found.step)[-3:] == [30, 30, 30]


def test_steps_without_a_batch_move_none_of_the_others(log):
    for step in range(1, 41):
        if step % 7 == 0:
            log.batch([step])
        log.log_step(step, train_loss=0.5)
    log.close()

    found = read_batches(log.run_folder)

    assert list(found.step) == [7, 14, 21, 28, 35] == [found.ids(at)[0] for at in range(len(found))]


def test_a_resumed_run_appends_its_batches_as_a_new_session(tmp_path):
    for _ in range(2):
        with TelemetryLogger("r", tmp_path, quiet=True, system=False, resume=True) as log:
            log.batch(["a.png", "b.png"], losses=[0.5, 0.25])
            log.log_step(1, train_loss=0.5)

    found = read_batches(log.run_folder)

    assert list(found.session) == [1, 2]
    assert found.fingerprint[0] == found.fingerprint[1]
    assert (found.ids(1), found.losses(1)) == (["a.png", "b.png"], [0.5, 0.25])


def test_secrets_in_ids_are_masked_and_the_ids_stay_different(log):
    log.batch(["hf_" + "aB3" * 12 + "x", "hf_" + "aB3" * 12 + "y", "b.png"], step=1)
    log.flush()

    *masked, plain = read_batches(log.run_folder).ids(0)
    assert len(set(masked)) == 2
    assert all(one.startswith("***-") for one in masked)
    assert plain == "b.png"


def test_a_full_file_gets_nothing_more_and_says_so_once(log, monkeypatch):
    monkeypatch.setattr(batch_writer, "MOST_BYTES", 30)
    for step in range(1, 5):
        log.batch([step, 2, 3, 4, 5], step=step)
        log.flush()

    found = read_batches(log.run_folder)
    said = [record["reason"] for record in _records(log, "batches_dropped")]

    assert list(found.step) == [1, 2]
    assert [reason.partition(": ")[2] for reason in said] == ["nothing more is kept"]


def test_a_disk_that_takes_nothing_costs_batches_that_are_counted(log, monkeypatch):
    monkeypatch.setattr(batch_writer, "_MOST_WAITING", 3)
    (log.run_folder / "batches.jsonl").mkdir()
    for step in range(1, 6):
        log.batch([step], step=step)
    log.flush()
    (log.run_folder / "batches.jsonl").rmdir()
    log.flush()

    kept = len(read_batches(log.run_folder))

    assert kept >= 3
    assert sum(record["count"] for record in _records(log, "batches_dropped")) == 5 - kept


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ids": [0.5]}, "must be integers, or texts, and not: float"),
        ({"ids": 0.5}, "and not: float"),
        ({"ids": ["a", None]}, "and not: NoneType, str"),
        ({"ids": [2**70, "a"]}, "and not: int, str"),
        ({"ids": b"abc"}, "and not: bytes"),
        ({"ids": [1, 2], "losses": [0.5]}, "1 losses for 2 samples"),
        ({}, "neither ids nor a batch"),
        ({"batch": {"x": object()}}, "neither ids nor a batch"),
    ],
)
def test_a_wrong_call_is_said_in_a_sentence(tmp_path, given, message):
    with TelemetryLogger("r", tmp_path, quiet=True, strict=True, system=False) as log:
        with pytest.raises(ValueError, match=message):
            log.batch(**given)


def test_it_can_be_switched_off(tmp_path):
    with TelemetryLogger("r", tmp_path, quiet=True, batches=False, system=False) as log:
        log.batch([1])
        log.log_step(1, train_loss=0.5)

    assert not (log.run_folder / "batches.jsonl").exists()


def test_the_content_of_a_batch_in_host_memory_has_a_fingerprint():
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    large = torch.arange(100_000, dtype=torch.float32).reshape(10, 100, 100)
    other = large.clone()
    other[4:] += 1
    same = [row_of(batch={"labels": torch.ones(3), "x": one}) for one in (large, large.clone())]

    assert same[0] == same[1] != row_of(batch={"x": other})
    assert same[0].samples == 10
    assert row_of(batch=(large.numpy(), 1)) == same[0]
    assert row_of(batch=large.bfloat16()) is not None
    assert row_of(batch=large.permute(2, 0, 1)) is not None
    assert row_of(batch=torch.empty(3, device="meta")) is None
    assert row_of(batch=np.array([object()])) is None
    assert (
        row_of(torch.tensor([3, 4])) == row_of(np.array([3, 4])) == row_of([torch.tensor(3), torch.tensor(4)])
    )


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_a_batch_that_has_no_plain_memory_has_no_fingerprint():
    torch = pytest.importorskip("torch")

    assert row_of(batch=torch.eye(2).to_sparse()) is None
    assert row_of(batch=torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])) is None
    assert row_of(batch={"meta": torch.ones(2, device="meta"), "x": torch.ones(3)}).samples == 3


def _train_with_a_bad_batch(folder, lr=lambda step: 3e-4):
    with TelemetryLogger("r", folder, quiet=True, system=False, log_every=1) as log:
        for step in range(1, 301):
            log.batch([f"{step}-a.png", f"{step}-b.png"])
            log.log_step(step, train_loss=9.0 if 200 <= step < 206 else 1.0 + 0.01 * (step % 3), lr=lr(step))
    return [one for one in diagnose(log.run_folder).only("info").findings if one.kind == "spike"]


def test_the_samples_of_a_step_stand_where_the_advice_says_to_look_at_its_batch(tmp_path):
    [spike] = _train_with_a_bad_batch(tmp_path)

    assert "look at the batches of step 200" in spike.advice[0]
    assert spike.advice[0].endswith("Batch of step 200: samples 200-a.png, 200-b.png.")
    assert "samples" not in spike.message


def test_the_samples_of_a_rise_that_the_learning_rate_made_are_not_named(tmp_path):
    [rise] = _train_with_a_bad_batch(tmp_path, lr=lambda step: 3e-4 if step >= 200 else 1e-6)

    assert "The learning rate was raised" in rise.message
    assert not any("samples" in line for line in (rise.message, *rise.advice))
