"""The batches that a run keeps are those that its steps were trained on: each loop below notes them itself, too."""

from __future__ import annotations

import copy
import pickle
import warnings
from types import SimpleNamespace

import pytest

from tests.lazy_module import LazyModule
from tests.telemetry.logged import PATIENCE_S
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.integrations.ai_toolkit.steps import Steps
from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.runfolder.evidence.batches import read_batches

torch = pytest.importorskip("torch")
transformers = LazyModule("transformers")
L = LazyModule("lightning.pytorch")
accelerate = LazyModule("accelerate")
of_transformers = LazyModule("toolkit.telemetry.integrations.transformers")
of_lightning = LazyModule("toolkit.telemetry.integrations.lightning")
of_accelerate = LazyModule("toolkit.telemetry.integrations.accelerate")

QUIET = {"system": False, "csv": False, "quiet": True, "close_timeout": PATIENCE_S}
SAMPLES = 22


class Numbered(torch.utils.data.Dataset):
    """Samples that say which they are."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, at):
        return {"x": torch.tensor([float(at), 1.0])}


class Streamed(torch.utils.data.IterableDataset):
    def __iter__(self):
        return ({"x": torch.tensor([float(at), 1.0])} for at in range(SAMPLES))


class Model(torch.nn.Module):
    """Notes the samples that it sees while it learns."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(2, 1)
        self.seen = []

    def forward(self, x):
        if self.training:
            self.seen.append([int(one) for one in x[:, 0]])
        return {"loss": (self.layer(x) ** 2).mean() / 1000}

    @property
    def weights(self):
        return self.layer.weight.detach().clone()


def kept(folder, session=None):
    """Return the batches of the only run: of each its step and ids."""
    (run,) = (path.parent for path in folder.glob("*/run.json"))
    found = read_batches(run)

    assert found.problem is None
    wanted = [at for at in range(len(found)) if session in (None, found.session[at])]
    return [found.step[at] for at in wanted], [list(found.ids(at) or ()) for at in wanted], found


# ------------------------------------------------------------ a plain loop


@pytest.mark.parametrize("given", [{}, {"num_workers": 2, "persistent_workers": True}, {"batch_size": None}])
def test_a_watched_loader_gives_the_same_batches_and_their_ids(tmp_path, given):
    def train(folder, *, is_watched):
        torch.manual_seed(0)
        loader = torch.utils.data.DataLoader(Numbered(), **{"batch_size": 4, "shuffle": True, **given})
        seen = []
        with TelemetryLogger("r", folder, **QUIET) as log:
            watched = log.watch_loader(loader) if is_watched else loader
            for epoch in range(3):
                for number, batch in enumerate(watched):
                    seen.append([int(one) for one in batch["x"].reshape(-1, 2)[:, 0]])
                    log.log_step(len(seen), train_loss=0.5)
                    if epoch == 1 and number == 2:
                        # The rest of what workers have fetched is not trained on.
                        break
        return seen, torch.rand(1), watched

    alone, watched = (train(tmp_path / str(one), is_watched=one) for one in (False, True))
    steps, ids, _ = kept(tmp_path / "True")

    assert watched[:2] == alone[:2]
    assert ids == watched[0]
    assert steps == list(range(1, len(ids) + 1))
    if not given:
        assert type(watched[2]) is torch.utils.data.DataLoader
        assert len(list(pickle.loads(pickle.dumps(watched[2])))) == 6


def test_a_stream_of_samples_has_fingerprints(tmp_path):
    for name in ("a", "b"):
        with TelemetryLogger("r", tmp_path / name, **QUIET) as log:
            for step, _ in enumerate(log.watch_loader(torch.utils.data.DataLoader(Streamed(), batch_size=4))):
                log.log_step(step, train_loss=0.5)
    (steps, _, first), (_, _, second) = kept(tmp_path / "a"), kept(tmp_path / "b")

    assert steps == list(range(6))
    assert list(first.samples) == [4, 4, 4, 4, 4, 2]
    assert list(first.fingerprint) == list(second.fingerprint)
    assert len(set(first.fingerprint)) == 6


# ------------------------------------------------------------ transformers


def train_transformers(folder, *, model=None, data=None, resume=None, **arguments):
    model = model or Model()
    telemetry = arguments.pop("telemetry", True)
    given = {"max_steps": 7, "logging_steps": 3, "save_strategy": "steps", "save_steps": 4, **arguments}
    args = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        **given,
    )
    callbacks = (
        [of_transformers.TelemetryCallback(log_dir=folder / "logs", phases=True, **QUIET)]
        if telemetry
        else []
    )
    trainer = transformers.Trainer(
        model=model, args=args, train_dataset=data or Numbered(), callbacks=callbacks
    )
    trainer.train(resume_from_checkpoint=resume)
    return model


def test_a_trainer_keeps_its_batches_also_resumed_within_an_epoch(tmp_path):
    first = train_transformers(tmp_path)
    alone = train_transformers(tmp_path / "alone", telemetry=False)
    steps, ids, _ = kept(tmp_path / "logs")

    assert torch.equal(first.weights, alone.weights)
    assert ids == first.seen == alone.seen
    # Eight batches an epoch: 22 samples, three each.
    assert steps == [step for step in range(1, 8) for _ in range(2)]

    again = train_transformers(tmp_path, resume=str(tmp_path / "out/checkpoint-4"), save_strategy="no")
    steps_again, ids_again, found = kept(tmp_path / "logs", session=2)

    assert ids_again == again.seen
    assert steps_again == [step for step in (5, 6, 7) for _ in range(2)]
    # What was abandoned is repeated.
    assert list(found.fingerprint)[-6:] == list(found.fingerprint)[8:14]


def test_a_trainer_on_a_stream_keeps_fingerprints_without_those_it_skips(tmp_path):
    model = train_transformers(tmp_path, data=Streamed())
    train_transformers(
        tmp_path, data=Streamed(), resume=str(tmp_path / "out/checkpoint-4"), save_strategy="no"
    )
    steps, _, found = kept(tmp_path / "logs")

    assert len(model.seen) == 14
    assert steps == [step for step in (*range(1, 8), 5, 6, 7) for _ in range(2)]
    assert list(found.fingerprint)[-6:] == list(found.fingerprint)[8:14]


# ------------------------------------------------------------ Lightning


@pytest.mark.parametrize("data", [Numbered, Streamed])
def test_lightning_keeps_its_batches(tmp_path, data):
    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def validation_step(self, batch, _):
            self.log("val_loss", self.model(**batch)["loss"])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def train(callbacks):
        module = Module()
        off = dict.fromkeys(
            ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
        )
        trainer = L.Trainer(
            max_epochs=2, accumulate_grad_batches=2, accelerator="cpu", callbacks=callbacks, **off
        )
        torch.manual_seed(0)
        loader = torch.utils.data.DataLoader(data(), batch_size=5, shuffle=data is Numbered)
        trainer.fit(module, loader, torch.utils.data.DataLoader(Numbered(), batch_size=5))
        return module.model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = train([])
        model = train([of_lightning.TelemetryCallback(log_dir=tmp_path, phases=True, **QUIET)])
    steps, ids, found = kept(tmp_path)

    assert torch.equal(model.weights, alone.weights)
    assert model.seen == alone.seen
    assert list(found.samples) == [len(one) for one in model.seen]
    assert ids == (model.seen if data is Numbered else [[]] * 10)
    assert steps == [1, 1, 2, 2, 3, 4, 4, 5, 5, 6]


# ------------------------------------------------------------ Accelerate


def test_a_loader_that_accelerate_prepared_can_be_watched(tmp_path):
    for state in ("AcceleratorState", "GradientState", "PartialState"):
        getattr(accelerate.state, state)._reset_state()
    tracker = of_accelerate.TelemetryTracker(log_dir=tmp_path, **QUIET)
    accelerator = accelerate.Accelerator(cpu=True, log_with=[tracker])
    model = Model()
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.utils.data.DataLoader(Numbered(), batch_size=5, shuffle=True),
    )
    accelerator.init_trackers("project")
    step = 0
    for epoch in range(2):
        left = accelerator.skip_first_batches(loader, 2) if epoch == 0 else loader
        for batch in tracker.tracker.watch_loader(left):
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            step += 1
            accelerator.log({"loss": 0.5}, step=step)
    accelerator.end_training()
    steps, ids, _ = kept(tmp_path)

    assert ids == model.seen
    assert steps == list(range(1, 9))


# ------------------------------------------------------------ ai-toolkit


def test_ai_toolkit_keeps_the_files_of_its_batches(tmp_path):
    items = [SimpleNamespace(path=f"/data/faces/{name}.png") for name in ("a", "b")]
    process = SimpleNamespace(step_num=3, hook_train_loop=lambda _: 0.5)
    with TelemetryLogger("r", tmp_path, **QUIET) as log:
        patches, run = MethodPatches(log.guard), FrameworkRun(log)
        run.open_run("r")
        Steps(process, run, patches)
        process.hook_train_loop([SimpleNamespace(file_items=items)])
        patches.undo()

    assert kept(tmp_path)[:2] == ([3], [["faces/a.png", "faces/b.png"]])


class Odd(torch.utils.data.Sampler):
    """Fills one list again and again, and gives what are no ids of the data."""

    def __iter__(self):
        batch = []
        for at in (0, 1, 2, 3, torch.tensor(4), 5, 6, (7, 32)):
            batch.append(at)
            if len(batch) == 2:
                yield batch
                batch.clear()

    def __len__(self):
        return 4


def test_odd_indices_cost_no_other_batch_and_a_copy_of_the_loader_keeps_its_own_data(tmp_path):
    class Any(Numbered):
        def __getitem__(self, at):
            return torch.tensor(float(at[0] if isinstance(at, tuple) else at))

    with TelemetryLogger("r", tmp_path, **QUIET) as log:
        loader = log.watch_loader(torch.utils.data.DataLoader(Any(), batch_sampler=Odd()))
        for step, _ in enumerate(loader):
            log.log_step(step, train_loss=0.5)
        other = copy.copy(loader)
        vars(other)["dataset"] = [torch.tensor(float(-at)) for at in range(7)]

        assert next(iter(other)).tolist() == [0.0, -1.0]

    found = read_batches(log.run_folder)

    assert [found.ids(at) for at in range(4)] == [[0, 1], [2, 3], [4, 5], None]
