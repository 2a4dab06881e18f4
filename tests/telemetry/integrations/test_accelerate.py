"""Training loops with the real Accelerate on the CPU, with a real TensorBoard tracker next to ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.records import read_records
from tests.telemetry.logged import QUIET
from toolkit.telemetry.logger.options import OptionsError
from toolkit.telemetry.runfolder.manifest import read_manifest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from accelerate import Accelerator  # noqa: E402  # only where Accelerate is installed
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402
from accelerate.utils import ProjectConfiguration  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from toolkit.telemetry.integrations.accelerate import TelemetryTracker  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh_accelerate():
    forget_accelerators()


def forget_accelerators():
    """Let the next accelerator be a new one: Accelerate keeps one state for the process."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def tracker_of(folder, **options):
    return TelemetryTracker(**{"log_dir": folder / "logs", "run_name": "r", **QUIET, **options})


def records(folder, event=None, session=None):
    found = read_records(folder / "logs/r/metrics.jsonl", event)
    return [record for record in found if session in (None, record["session"])]


def train(folder, tracker, *, others=(), between=None):
    """Train as a script with Accelerate does: ten batches, five steps. Return the losses of the steps."""
    accelerator = Accelerator(
        cpu=True,
        log_with=[tracker, *others],
        gradient_accumulation_steps=2,
        project_config=ProjectConfiguration(project_dir=str(folder), logging_dir=str(folder / "board")),
    )
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
    tracker.watch(accelerator, save_to=folder / "saved")
    accelerator.init_trackers("project")
    step, losses = 0, []
    for features, target in loader:
        with accelerator.accumulate(model):
            loss = ((model(features) - target) ** 2).mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            losses.append(loss.item())
            accelerator.log({"loss": loss.detach(), "learning_rate": 0.1, "phase": "warm"}, step=step)
            if between is not None:
                between(accelerator, step)
    accelerator.log({"eval_loss": 0.5, "eval/accuracy": 0.25}, step=step)
    accelerator.end_training()
    return losses


def test_what_is_logged_is_in_the_run_and_in_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    losses = train(tmp_path, tracker_of(tmp_path), others=["tensorboard"])
    steps = records(tmp_path, "step")
    board = EventAccumulator(str(tmp_path / "board/project")).Reload()

    assert [r["global_step"] for r in steps] == [1, 2, 3, 4, 5]
    assert [r["loss"] for r in steps] == pytest.approx(losses, rel=1e-6)
    assert [r["train_loss"] for r in steps] == pytest.approx(losses, rel=1e-6)
    assert [(e.step, e.value) for e in board.Scalars("loss")] == [
        (r["global_step"], pytest.approx(r["loss"], rel=1e-6)) for r in steps
    ]
    assert {(r["lr"], r["phase"]) for r in steps} == {(0.1, "warm")}
    (evaluation,) = records(tmp_path, "eval")
    assert (evaluation["global_step"], evaluation["eval_loss"], evaluation["eval/accuracy"]) == (5, 0.5, 0.25)


def test_a_second_training_in_one_process_is_another_run(tmp_path):
    tracker = tracker_of(tmp_path)
    for turn in ("first", "second"):
        forget_accelerators()
        train(
            tmp_path,
            tracker,
            between=lambda accelerator, step, turn=turn: (
                accelerator.save_state(str(tmp_path / turn)) if step == 2 else None
            ),
        )

    for run, turn in (("r", "first"), ("r-2", "second")):
        found = read_records(tmp_path / f"logs/{run}/metrics.jsonl")
        assert [r["global_step"] for r in found if r["event"] == "step"] == [1, 2, 3, 4, 5]
        (saved,) = (r for r in found if r["event"] == "checkpoint")
        assert (saved["global_step"], Path(saved["checkpoint_path"]).name) == (2, turn)


def test_a_training_that_goes_back_saves_at_the_step_where_it_is(tmp_path):
    tracker = tracker_of(tmp_path)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.prepare(torch.nn.Linear(2, 1))
    tracker.watch(accelerator)
    accelerator.init_trackers("project")
    for step in (1, 2, 3):
        accelerator.log({"loss": 1.0}, step=step)
        accelerator.save_state(str(tmp_path / f"at-{step}"))
    accelerator.load_state(str(tmp_path / "at-1"))
    accelerator.log({"loss": 1.0}, step=2)
    # Counted in epochs, as some scripts do.
    accelerator.log({"eval_loss": 1.0}, step=1)
    accelerator.save_state(str(tmp_path / "again"))
    accelerator.end_training()

    assert [r["global_step"] for r in records(tmp_path, "checkpoint")] == [1, 2, 3, 2]


def test_images_are_put_into_the_run_folder(tmp_path):
    image = pytest.importorskip("PIL.Image").new("RGB", (2, 3), "red")
    numpy = pytest.importorskip("numpy")
    tracker = tracker_of(tmp_path)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("project")
    accelerator.log({"loss": 1.0}, step=4)
    assert accelerator.get_tracker("telemetry", unwrap=True) is tracker.tracker
    accelerator.get_tracker("telemetry").log_images({"val/cat": [image, numpy.zeros((3, 2, 3), "uint8")]})
    accelerator.end_training()

    samples = records(tmp_path, "sample")
    assert [(r["global_step"], r["prompt"]) for r in samples] == [(4, "val/cat")] * 2
    assert all((tmp_path / "logs/r" / r["path"]).stat().st_size > 0 for r in samples)


def test_a_state_that_cannot_be_saved_raises_as_without_us(tmp_path):
    (tmp_path / "file").write_text("in the way")
    tracker = tracker_of(tmp_path)
    with pytest.raises(OSError):
        train(
            tmp_path,
            tracker,
            between=lambda accelerator, step: accelerator.save_state(str(tmp_path / "file")),
        )
    tracker.finish()

    assert records(tmp_path, "checkpoint") == []


def test_log_with_takes_the_name_and_the_options_of_init_kwargs(tmp_path):
    accelerator = Accelerator(cpu=True, log_with="telemetry")
    wrong = {"telemetry": {"log_dir": tmp_path / "logs", "log_evry": 1}}
    with pytest.raises(OptionsError, match="log_evry"):
        accelerator.init_trackers("r", init_kwargs=wrong)
    accelerator.init_trackers("r", {"lr": 0.5}, {"telemetry": {"log_dir": tmp_path / "logs", **QUIET}})
    accelerator.log({"loss": 0.25}, step=1)
    accelerator.end_training()

    assert records(tmp_path, "start")[0]["config"] == {"lr": 0.5}
    assert [step["train_loss"] for step in records(tmp_path, "step")] == [0.25]
    manifest = read_manifest(tmp_path / "logs/r")
    assert manifest.sessions[-1].status == "finished"
    assert manifest.project == "r"
