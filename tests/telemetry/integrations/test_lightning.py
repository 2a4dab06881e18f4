"""Trainings with the real Lightning, on the CPU: what its own loggers say is compared with the run folder."""

from __future__ import annotations

import csv
import importlib.util
import os
import signal
import textwrap
import warnings
from pathlib import Path

import pytest

from tests.lazy_module import LazyModule
from tests.lengths import in_make_faults
from tests.records import read_records
from tests.telemetry.logged import QUIET, run_program
from toolkit.telemetry.runfolder.manifest import read_manifest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("lightning") is None:
    pytest.skip("Lightning is not installed", allow_module_level=True)

L = LazyModule("lightning.pytorch")
modules = LazyModule("tests.telemetry.integrations.lightning_modules")
ours = LazyModule("toolkit.telemetry.integrations.lightning")

SAMPLES, BATCH, ACCUMULATED, EPOCHS = 20, 4, 2, 2
STEPS = 6
"""Five batches an epoch make three steps: two of two batches and one of one."""


@pytest.fixture(autouse=True)
def _without_lightnings_advice():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def loader(batch_size=BATCH):
    generator = torch.Generator().manual_seed(0)
    data = torch.utils.data.TensorDataset(
        torch.randn(SAMPLES, 4, generator=generator), torch.randn(SAMPLES, 1, generator=generator)
    )
    return torch.utils.data.DataLoader(data, batch_size=batch_size)


def trainer_of(folder, callbacks, **options):
    return L.Trainer(
        **{
            "max_epochs": EPOCHS,
            "accelerator": "cpu",
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": any(isinstance(one, L.callbacks.ModelCheckpoint) for one in callbacks),
            "default_root_dir": folder,
            "callbacks": callbacks,
            **options,
        }
    )


def callback_of(folder, **options):
    return ours.TelemetryCallback(
        **{"log_dir": folder / "logs", "run_name": "r", "log_every": 1, **QUIET, **options}
    )


def logger_of(folder, **options):
    return ours.TelemetryLightningLogger(
        **{"log_dir": folder / "logs", "run_name": "r", "save_dir": folder, **QUIET, **options}
    )


def records(folder, event=None, name="r", session=None):
    found = read_records(folder / "logs" / name / "metrics.jsonl", event)
    return [record for record in found if session in (None, record["session"])]


def spans(folder, name):
    return [record for record in records(folder, "span") if record["name"] == name]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A training with accumulation, validation, checkpoints and Lightning's own CSV file, and a test after it."""
    folder = tmp_path_factory.mktemp("lightning")
    torch.manual_seed(0)
    module = modules.Regression()
    callback = callback_of(folder, perf_tag="cpu", session_tag="night")
    saves = L.callbacks.ModelCheckpoint(dirpath=folder / "kept", monitor="val_loss", save_top_k=-1)
    trainer = trainer_of(
        folder,
        [callback, saves],
        accumulate_grad_batches=ACCUMULATED,
        gradient_clip_val=1.0,
        log_every_n_steps=1,
        logger=L.loggers.CSVLogger(folder, name="csv", version=""),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, loader(), loader(10))
        trainer.test(module, loader(10), verbose=False)
    return folder, trainer, callback, module


def history(folder, column):
    with (folder / "csv/metrics.csv").open() as file:
        return [float(row[column]) for row in csv.DictReader(file) if row[column]]


def test_each_step_of_the_optimizer_is_one_step_however_many_batches_it_took(trained):
    folder, trainer, _, module = trained
    steps = records(folder, "step")
    batches = [[0, 1], [2, 3], [4], [5, 6], [7, 8], [9]]

    assert [step["global_step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert trainer.global_step == STEPS
    for step, of_step in zip(steps, batches, strict=True):
        mean = sum(module.losses[i] for i in of_step) / len(of_step)
        assert step["train_loss"] == pytest.approx(mean, rel=1e-5)
    assert [step["lr"] for step in steps] == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]
    assert [step["epoch"] for step in steps] == [0, 0, 0, 1, 1, 1]


def test_metrics_are_those_that_lightnings_own_logger_has(trained):
    folder, _, _, _ = trained

    assert [r["train_mse_step"] for r in records(folder, "step")] == pytest.approx(
        history(folder, "train_mse_step"), rel=1e-5
    )
    assert [r["val_loss"] for r in records(folder, "eval") if "val_loss" in r] == pytest.approx(
        history(folder, "val_loss"), rel=1e-5
    )
    epochs = records(folder, "epoch")
    assert [(r["epoch"], r["global_step"]) for r in epochs] == [(0, 3), (1, 6)]
    assert [r["train_mse_epoch"] for r in epochs] == pytest.approx(
        history(folder, "train_mse_epoch"), rel=1e-5
    )


def test_an_older_metric_is_not_recorded_again(trained):
    folder, _, _, _ = trained

    for record in records(folder, "step"):
        assert not {"val_loss", "score", "train_mse_epoch"} & set(record)
        assert record["test_of_names"] == 1.5
    assert [set(r) & {"train_mse_step", "val_loss", "test_loss"} for r in records(folder, "eval")] == [
        {"val_loss"},
        {"val_loss"},
        {"test_loss"},
    ]


def test_the_check_of_the_validation_before_the_training_is_left_out(trained):
    folder, _, _, _ = trained
    first_step = records(folder, "step")[0]["seq"]

    assert [r for r in records(folder, "eval") if r["seq"] < first_step] == []
    assert [
        r for r in records(folder, "span_start") if r["name"] == "validation_loop" and r["seq"] < first_step
    ] == []


def test_a_test_after_the_training_is_a_further_session_of_the_run(trained):
    folder, _, callback, _ = trained
    manifest = read_manifest(folder / "logs/r")

    assert [(s.status, s.perf_tag, s.session_tag) for s in manifest.sessions] == [
        ("finished", "cpu", "night")
    ] * 2
    assert [r["test_loss"] for r in records(folder, "eval", session=2)] == history(folder, "test_loss")
    assert callback.guard.total == 0


def test_a_background_checkpoint_is_recorded_once_it_is_saved(tmp_path):
    plugin = L.plugins.io.AsyncCheckpointIO()
    saves = L.callbacks.ModelCheckpoint(dirpath=tmp_path, save_top_k=-1)
    trainer_of(tmp_path, [callback_of(tmp_path), saves], plugins=[plugin]).fit(modules.Regression(), loader())

    assert [r["global_step"] for r in records(tmp_path, "checkpoint")] == [5, 10]
    assert all(r["bytes"] > 0 for r in records(tmp_path, "checkpoint"))


def test_a_validation_alone_is_a_run_of_its_own(tmp_path):
    callback = callback_of(tmp_path)
    (recorded,) = trainer_of(tmp_path, [callback]).validate(modules.Regression(), loader(), verbose=False)

    (evaluation,) = records(tmp_path, "eval")
    assert evaluation["val_loss"] == pytest.approx(recorded["val_loss"], rel=1e-6)
    assert len(spans(tmp_path, "validation_loop")) == 1
    assert records(tmp_path, "end")[0]["status"] == "finished"
    assert callback.guard.total == 0


@pytest.fixture
def _own_interrupt_handler():
    """Put the handler back: Lightning lets no further interrupt through while it ends."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("_own_interrupt_handler")
@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "signal")])
def test_a_training_that_is_interrupted_or_terminated_is_a_stopped_run(tmp_path, number, reason):
    def interrupt(module, batch, loss):
        if batch == 2:
            os.kill(os.getpid(), number)
        return loss

    with pytest.raises(SystemExit):
        trainer_of(tmp_path, [callback_of(tmp_path)]).fit(modules.Regression(at_batch=interrupt), loader())

    (end,) = records(tmp_path, "end")
    assert (end["status"], end["reason"]) == ("stopped", reason)


def test_steps_made_by_hand_with_two_optimizers_are_counted_as_lightning_counts_them(tmp_path):
    callback = callback_of(tmp_path)
    trainer = trainer_of(tmp_path, [callback], max_epochs=1)
    trainer.fit(modules.TwoOptimizers(), loader())

    steps = records(tmp_path, "step")
    assert trainer.global_step == 10
    assert [r["global_step"] for r in steps] == [2, 4, 6, 8, 10]
    assert {(r["lr"], r["lr_1"], r["grad_norm"]) for r in steps} == {(0.1, 0.2, 3.5)}
    assert all(r["train_loss"] == r["loss"] for r in steps)
    summary = records(tmp_path, "span_summary")[-1]
    counts = {name: times["count"] for name, times in summary["span_times"].items()}
    assert counts["training_iteration"] == 5
    assert callback.guard.total == 0


def test_a_logger_and_a_callback_write_one_run(tmp_path):
    logger = logger_of(tmp_path, run_name="both", log_every=1, save_dir=tmp_path / "saved")

    def add(module, batch, loss):
        if batch == 1:
            logger.log_hyperparams({"late": True})
        return loss

    saves = L.callbacks.ModelCheckpoint()
    trainer = trainer_of(tmp_path, [ours.TelemetryCallback(), saves], logger=logger, log_every_n_steps=1)
    trainer.fit(modules.Regression(at_batch=add), loader(), loader())

    assert [folder.name for folder in (tmp_path / "logs").iterdir()] == ["both"]
    steps = records(tmp_path, "step", name="both")
    assert [r["global_step"] for r in steps] == [*range(1, 11)]
    assert len(records(tmp_path, "eval", name="both")) == EPOCHS
    (start,) = records(tmp_path, "start", name="both")
    assert start["config"] == {"width": 8}
    assert Path(saves.dirpath) == tmp_path / "saved/both/checkpoints"
    assert (logger.name, logger.log_dir) == ("both", str(tmp_path / "logs/both"))

    trainer_of(tmp_path, [], logger=logger).test(modules.Regression(), loader(), verbose=False)

    assert "test_loss" in records(tmp_path, "eval", name="both", session=2)[-1]
    assert [r["status"] for r in records(tmp_path, "end", name="both")] == ["finished", "finished"]


def test_a_logger_alone_gives_the_trainer_a_callback(tmp_path):
    logger = logger_of(tmp_path, log_every=1)
    theirs = L.loggers.CSVLogger(tmp_path, name="csv", version="")
    trainer = trainer_of(tmp_path, [], logger=[logger, theirs], log_every_n_steps=1)
    trainer.fit(modules.Regression(), loader(), loader())

    assert [r["train_mse_step"] for r in records(tmp_path, "step")] == pytest.approx(
        history(tmp_path, "train_mse_step"), rel=1e-5
    )
    assert [r["val_loss"] for r in records(tmp_path, "eval")] == pytest.approx(
        history(tmp_path, "val_loss"), rel=1e-5
    )
    assert records(tmp_path, "end")[0]["status"] == "finished"
    logger.log_metrics({"late": 1.0})
    assert logger.guard.total == 1


def test_a_save_by_the_script_itself_is_recorded_as_one_without_a_path(tmp_path):
    def save(module, batch, loss):
        if batch == 2:
            module.trainer.save_checkpoint(tmp_path / "own.ckpt")
        return loss

    trainer_of(tmp_path, [callback_of(tmp_path)], max_epochs=1).fit(
        modules.Regression(at_batch=save), loader()
    )

    (saved,) = records(tmp_path, "checkpoint")
    assert (saved["global_step"], saved.get("checkpoint_path")) == (2, None)


def test_metrics_passed_to_the_logger_are_records_of_their_own(tmp_path):
    logger = logger_of(tmp_path, log_every=1)

    class Handing(modules.Regression):
        def training_step(self, batch, batch_idx):
            # With this name Lightning passes another step than its own to its loggers.
            self.log("step", 100.0)
            self.log("number", float(self.global_step))
            if self.global_step == 2:
                self.logger.log_metrics({"own": 1.0, "epoch": 0})
            return self.loss_of(batch)

        def on_test_epoch_end(self):
            self.logger.log_metrics({"test_own": 2.0})

    trainer = trainer_of(
        tmp_path, [ours.TelemetryCallback()], logger=logger, log_every_n_steps=1, max_epochs=1
    )
    trainer.fit(Handing(), loader(), loader(10))
    trainer.test(Handing(), loader(), verbose=False)

    steps = records(tmp_path, "step")
    assert [(r["global_step"], r["number"]) for r in steps if "number" in r] == [
        (n + 1, float(n)) for n in range(5)
    ]
    assert [(r["global_step"], r["own"]) for r in steps if "own" in r] == [(2, 1.0)]
    assert [r["test_own"] for r in records(tmp_path, "eval") if "test_own" in r] == [2.0]


def test_predictions_are_no_run(tmp_path):
    class Predicting(modules.Regression):
        def predict_step(self, batch, batch_idx):
            return self.layers(batch[0])

    trainer_of(tmp_path, [], logger=logger_of(tmp_path)).predict(Predicting(), loader())
    trainer_of(tmp_path, [callback_of(tmp_path)]).predict(Predicting(), loader())

    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("has_callback", [True, False])
def test_a_second_training_gets_a_new_run_unless_it_resumes(tmp_path, has_callback):
    logger = logger_of(tmp_path, log_every=1)
    callbacks = [ours.TelemetryCallback()] if has_callback else []

    def new_trainer():
        return trainer_of(tmp_path, callbacks, logger=logger, log_every_n_steps=1, max_epochs=1)

    new_trainer().validate(modules.Regression(), loader(), verbose=False)
    trainer = new_trainer()
    trainer.fit(modules.Regression(), loader())
    trainer.fit_loop.max_epochs = 2
    trainer.fit(trainer.lightning_module, loader())
    new_trainer().fit(modules.Regression(), loader())

    sessions = {folder.name: len(read_manifest(folder).sessions) for folder in (tmp_path / "logs").iterdir()}
    assert sessions == {"r": 1, "r-2": 2, "r-3": 1}


def test_what_was_done_before_a_failure_is_recorded(tmp_path):
    plugin = L.plugins.io.AsyncCheckpointIO()

    class FailsInTheEnd(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                # Until the checkpoint of the first epoch is there.
                plugin._executor.shutdown(wait=True)
                raise ValueError("no such sample")

    callbacks = [callback_of(tmp_path), FailsInTheEnd(), L.callbacks.ModelCheckpoint(dirpath=tmp_path)]
    with pytest.raises(ValueError, match="no such sample"):
        trainer_of(tmp_path, callbacks, plugins=[plugin]).fit(modules.Regression(), loader())

    assert [r["global_step"] for r in records(tmp_path, "checkpoint")] == [5]
    assert [r["epoch"] for r in records(tmp_path, "epoch")] == [0, 1]


def test_a_training_whose_end_another_callback_hides_is_ended_before_the_next(tmp_path):
    class Hides(L.Callback):
        def on_exception(self, *_):
            raise RuntimeError("broken, too")

    def fail(module, batch, loss):
        raise ValueError("no such sample")

    callback = callback_of(tmp_path)
    callbacks = [Hides(), callback, L.callbacks.ModelCheckpoint(dirpath=tmp_path, save_top_k=-1)]
    trainer = trainer_of(tmp_path, callbacks)
    with pytest.raises(RuntimeError, match="broken, too"):
        trainer.fit(modules.Regression(at_batch=fail), loader())
    trainer.fit(modules.Regression(), loader())

    ended = {
        folder.name: read_manifest(folder).sessions[0].status for folder in (tmp_path / "logs").iterdir()
    }
    assert ended == {"r": "failed", "r-2": "finished"}
    assert [r["global_step"] for r in records(tmp_path, "checkpoint", name="r-2")] == [5, 10]


OTHER_NAME = """
    import sys
    import torch
    {imports}
    from toolkit.telemetry.integrations.lightning import TelemetryCallback, TelemetryLightningLogger

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, batch_idx):
            return self.layer(batch).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    logger = TelemetryLightningLogger(log_dir="logs", run_name="r", log_every=1, system=False)
    trainer = pl.Trainer(
        max_steps=3, accelerator="cpu", enable_progress_bar=False, logger=logger, callbacks=[TelemetryCallback()]
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2))
    assert isinstance(TelemetryCallback(), pl.Callback) and isinstance(logger, pl.loggers.Logger)
    assert ("lightning.pytorch" in sys.modules) == {both}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imports", "both"),
    [
        ("import pytorch_lightning as pl", False),
        ("import lightning.pytorch, pytorch_lightning as pl", True),
    ],
)
@in_make_faults
def test_the_older_name_of_the_package_works_too(tmp_path, imports, both):
    pytest.importorskip("pytorch_lightning")
    run_program(tmp_path, "-c", textwrap.dedent(OTHER_NAME.format(imports=imports, both=both)))

    assert [r["global_step"] for r in records(tmp_path, "step")] == [1, 2, 3]


PROGRAMS = Path(__file__).with_name("programs")


@pytest.mark.slow
@in_make_faults
def test_one_rank_does_not_stop_without_the_others_where_the_logger_is_older_than_them(tmp_path):
    done = run_program(tmp_path, PROGRAMS / "lightning_after_the_logger.py")

    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert said == ["rank 0 ended at 10", "rank 1 ended at 10"]
    steps = [len(records(tmp_path, "step", name=folder.name)) for folder in (tmp_path / "logs").iterdir()]
    assert sorted(steps) == [0, 10]
