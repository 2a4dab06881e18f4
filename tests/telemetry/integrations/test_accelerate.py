"""Training loops with the real Accelerate on the CPU, with a real TensorBoard tracker next to ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lengths import in_make_faults
from tests.records import read_records, state_of
from tests.telemetry.integrations.control_requests import ask
from tests.telemetry.logged import PATIENCE_S, make_logger
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.options import OptionsError
from toolkit.telemetry.runfolder.manifest import read_manifest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from accelerate import Accelerator  # noqa: E402  # only where Accelerate is installed
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402
from accelerate.utils import ProjectConfiguration  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from toolkit.telemetry.integrations.accelerate import TelemetryTracker  # noqa: E402

QUIET = {"system": False, "csv": False, "close_timeout": PATIENCE_S}


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


def train(
    folder,
    tracker,
    *,
    watch=True,
    others=(),
    accumulated=2,
    config=None,
    between=None,
    resume=None,
    start=0,
    samples=40,
):
    """Train as a script with Accelerate does: ten batches, five steps. Return the losses of the steps and the norms."""
    accelerator = Accelerator(
        cpu=True,
        log_with=[tracker, *others],
        gradient_accumulation_steps=accumulated,
        project_config=ProjectConfiguration(project_dir=str(folder), logging_dir=str(folder / "board")),
    )
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(samples, 4), torch.randn(samples, 1))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
    if watch:
        tracker.watch(accelerator, save_to=folder / "saved")
    accelerator.init_trackers("project", config=config)
    if resume is not None:
        accelerator.load_state(str(resume))
    step, losses, norms = start, [], []
    for features, target in loader:
        with accelerator.accumulate(model):
            loss = ((model(features) - target) ** 2).mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 1.0)))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            losses.append(loss.item())
            accelerator.log({"loss": loss.detach(), "learning_rate": 0.1, "phase": "warm"}, step=step)
            if between is not None and between(accelerator, step) is False:
                break
    accelerator.log({"eval_loss": 0.5, "eval/accuracy": 0.25}, step=step)
    accelerator.end_training()
    return losses, norms


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accelerate")
    forget_accelerators()
    tracker = tracker_of(folder, perf_tag="cpu", session_tag="night")

    def save(accelerator, step):
        if step == 3:
            accelerator.save_state(str(folder / "three"))

    config = {"lr": 0.1, "train_batch_size": 4, "max_train_steps": 5, "seed": 7, "note": "tiny"}
    losses, norms = train(folder, tracker, others=["tensorboard"], config=config, between=save)
    return folder, tracker, losses, norms


@pytest.fixture(scope="module")
def trained_with_phases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accelerate-phases")
    forget_accelerators()
    tracker = tracker_of(folder, phases=True)
    losses, norms = train(folder, tracker)
    return folder, tracker, losses, norms


def test_what_is_logged_is_in_the_run_and_beside_it_in_tensorboard(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _, losses, _ = trained
    steps = records(folder, "step")
    board = EventAccumulator(str(folder / "board/project")).Reload()

    assert [r["global_step"] for r in steps] == [1, 2, 3, 4, 5]
    assert [r["loss"] for r in steps] == pytest.approx(losses, rel=1e-6)
    assert [r["train_loss"] for r in steps] == pytest.approx(losses, rel=1e-6)
    assert [(e.step, e.value) for e in board.Scalars("loss")] == [
        (r["global_step"], pytest.approx(r["loss"], rel=1e-6)) for r in steps
    ]
    assert {(r["lr"], r["phase"]) for r in steps} == {(0.1, "warm")}
    (evaluation,) = records(folder, "eval")
    assert (evaluation["global_step"], evaluation["eval_loss"], evaluation["eval/accuracy"]) == (5, 0.5, 0.25)


def test_the_start_record_has_the_configuration(trained):
    folder, _, _, _ = trained
    (start,) = records(folder, "start")

    assert start["config"]["note"] == "tiny"
    recorded = (
        "learning_rate",
        "batch_size",
        "max_steps",
        "seed",
        "gradient_accumulation_steps",
        "world_size",
    )
    assert [start[name] for name in recorded] == [0.1, 4, 5, 7, 2, 1]
    (session,) = read_manifest(folder / "logs/r").sessions
    assert (session.status, session.perf_tag, session.session_tag) == ("finished", "cpu", "night")


def test_with_phases_an_iteration_is_an_optimizer_step_and_its_parts_have_spans(trained_with_phases):
    folder, tracker, _, norms = trained_with_phases
    # A long one is written in between, too; the last record has all.
    summary = records(folder, "span_summary")[-1]

    assert {name: times["count"] for name, times in summary["span_times"].items()} == {
        "application": 1,
        "training_loop": 1,
        "training_iteration": 5,
        "forward": 10,
        "backward": 10,
        "optimizer_update": 5,
    }
    assert [step["grad_norm"] for step in records(folder, "step")] == pytest.approx(norms)
    assert tracker.guard.total == 0


def test_without_phases_no_method_of_the_accelerator_is_patched(tmp_path):
    patched = set()

    def read_patches(accelerator, step):
        kind = type(accelerator)
        patched.update(name for name in vars(accelerator) if callable(getattr(kind, name, None)))

    train(tmp_path, tracker_of(tmp_path), between=read_patches)

    assert patched == set()


def test_a_saved_state_is_recorded_and_knows_its_run(trained):
    folder, _, _, _ = trained
    (saved,) = records(folder, "checkpoint")

    assert (saved["global_step"], Path(saved["checkpoint_path"])) == (3, folder / "three")
    weights = (folder / "three/model.safetensors").stat().st_size
    assert saved["bytes"] > weights
    assert 0 <= saved["seconds"] < 60
    assert saved["timed_since"] == "save_state's hook"
    assert (folder / "three/telemetry_run.json").exists()


def test_a_training_from_a_saved_state_resumes_its_run(tmp_path):
    train(
        tmp_path,
        tracker_of(tmp_path),
        between=lambda accelerator, step: accelerator.save_state(str(tmp_path / "s")),
    )
    forget_accelerators()
    resumed = tracker_of(tmp_path, resume_from=tmp_path / "s", resumed_from_step=5, phases=True)
    train(tmp_path, resumed, resume=tmp_path / "s", start=5)

    assert [folder.name for folder in (tmp_path / "logs").iterdir()] == ["r"]
    assert [r["global_step"] for r in records(tmp_path, "step", session=2)] == [6, 7, 8, 9, 10]
    assert records(tmp_path, "start", session=2)[0]["resumed_from_step"] == 5
    names = {r["name"] for r in records(tmp_path, "span", session=2)}
    assert "checkpoint_load" in names
    began, *saved, loaded = records(tmp_path, "state")
    assert [r["at"] for r in (began, *saved, loaded)] == ["start", *["save"] * 5, "load"]
    kept = {name: value for name, value in state_of(saved[-1]).items() if not name.startswith("rng")}
    assert state_of(loaded) == kept
    assert len({r["weights_norm"] for r in (began, *saved)}) == 6


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


def test_requests_are_carried_out_between_two_steps(tmp_path):
    tracker = tracker_of(tmp_path)

    def ask_at_two(accelerator, step):
        if tracker.should_stop:
            return False
        if step == 2:
            ask(tracker.tracker, actions=["save_and_stop"])
        return True

    losses, _ = train(tmp_path, tracker, between=ask_at_two)

    assert len(losses) == 3
    assert (tmp_path / "saved/asked-step-3/model.safetensors").exists()
    assert [r["global_step"] for r in records(tmp_path, "checkpoint")] == [3]
    (answer,) = records(tmp_path, "control_change")
    assert (answer["status"], answer["actions"], answer["global_step"]) == ("applied", ["save_and_stop"], 3)
    assert records(tmp_path, "end")[0]["status"] == "stopped"


def test_a_training_that_fails_is_a_failed_run(tmp_path):
    failure = ValueError("no such sample")
    tracker = tracker_of(tmp_path, phases=True)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    tracker.watch(accelerator)
    accelerator.init_trackers("project")

    def script():
        try:
            for step in range(3):
                with accelerator.accumulate():
                    if step == 2:
                        raise failure
                accelerator.log({"loss": 1.0}, step=step)
        finally:
            accelerator.end_training()

    with pytest.raises(ValueError) as caught:
        script()

    assert caught.value is failure
    assert records(tmp_path, "end")[0]["status"] == "failed"
    failed = {r["name"] for r in records(tmp_path, "span") if r.get("error", {}).get("type") == "ValueError"}
    assert {"forward", "training_iteration", "training_loop", "application"} <= failed
    assert "accumulate" not in vars(accelerator)


def test_images_are_put_into_the_run_folder(tmp_path):
    image = pytest.importorskip("PIL.Image").new("RGB", (2, 3), "red")
    numpy = pytest.importorskip("numpy")
    tracker = tracker_of(tmp_path)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("project")
    accelerator.log({"loss": 1.0}, step=4)
    accelerator.get_tracker("telemetry").log_images({"val/cat": [image, numpy.zeros((3, 2, 3), "uint8")]})
    accelerator.end_training()

    samples = records(tmp_path, "sample")
    assert [(r["global_step"], r["prompt"]) for r in samples] == [(4, "val/cat")] * 2
    assert all((tmp_path / "logs/r" / r["path"]).stat().st_size > 0 for r in samples)


def test_the_logger_is_what_get_tracker_unwraps_to(tmp_path):
    log = make_logger(tmp_path / "logs", log_every=1)
    tracker = TelemetryTracker(log)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("project")
    unwrapped = accelerator.get_tracker("telemetry", unwrap=True)
    accelerator.log({"loss": 1.0}, step=1)
    accelerator.end_training()

    assert unwrapped is log
    assert log.is_live
    log.close()
    assert len(records(tmp_path, "step")) == 1


def test_switched_off_nothing_is_written_and_nothing_put_around_the_accelerator(tmp_path):
    tracker = tracker_of(tmp_path, enabled=False)
    seen = []
    losses, _ = train(
        tmp_path, tracker, between=lambda accelerator, step: seen.append("accumulate" in vars(accelerator))
    )

    assert len(losses) == 5
    assert not (tmp_path / "logs").exists()
    assert set(seen) == {False}
    assert not tracker.should_stop


@pytest.mark.parametrize("method", ["__init__", "log_step", "start_span", "log_start", "log_eval"])
def test_a_broken_logger_does_not_stop_the_training(tmp_path, monkeypatch, method, caplog):
    def fail(*_, **__):
        raise RuntimeError("broken")

    monkeypatch.setattr(TelemetryLogger, method, fail)
    tracker = tracker_of(tmp_path)
    losses, _ = train(
        tmp_path, tracker, between=lambda accelerator, step: accelerator.save_state(str(tmp_path / "s"))
    )

    assert len(losses) == 5
    assert (tmp_path / "s/model.safetensors").exists()
    assert tracker.guard.total > 0
    assert "broken" in caplog.text


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


def test_wrong_options_are_rejected_when_it_is_created(tmp_path):
    with pytest.raises(OptionsError, match="log_evry"):
        TelemetryTracker(log_evry=5)
    with pytest.raises(OptionsError, match="log_every"):
        TelemetryTracker({"log_every": 0})
    with pytest.raises(OptionsError, match="log_dir"):
        TelemetryTracker(make_logger(tmp_path, enabled=False), log_dir="logs")


TWO_RANKS = Path(__file__).parent / "programs" / "accelerate_on_two_ranks.py"


@in_make_faults
@pytest.mark.slow
def test_two_ranks_write_one_run_and_stop_at_one_step(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", TWO_RANKS],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    (answer,) = records(tmp_path, "control_change")
    assert answer["status"] == "applied"
    for rank in (0, 1):
        said = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert said == {"stopped_at": answer["global_step"], "left": []}
    assert [r["global_step"] for r in records(tmp_path, "step")] == [*range(1, answer["global_step"] + 1)]
    assert (tmp_path / f"saved/asked-step-{answer['global_step']}/model.safetensors").exists()


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
