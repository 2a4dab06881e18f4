"""How much of our Python runs in a step of a small training that logs nothing: calls are counted, not timed."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from pathlib import Path

import pytest

import toolkit.telemetry
from tests.lazy_module import LazyModule

torch = LazyModule("torch")
lightning = LazyModule("lightning")
transformers = LazyModule("transformers")
accelerate = LazyModule("accelerate")
our_accelerate = LazyModule("toolkit.telemetry.integrations.accelerate")
our_lightning = LazyModule("toolkit.telemetry.integrations.lightning")
our_transformers = LazyModule("toolkit.telemetry.integrations.transformers")

OURS = str(Path(toolkit.telemetry.__file__).parent)
FIRST, LAST = 12, 20


class Calls:
    """Counts the calls of our functions and those they make, on this thread, from step FIRST to step LAST."""

    def __init__(self):
        self.of = Counter()
        self._step = 0

    def end_step(self):
        self._step += 1
        if self._step in (FIRST, LAST):
            sys.setprofile(self._count if self._step == FIRST else None)

    def _count(self, frame, event, _):
        # A property of the trainer's costs as much as a function of ours.
        if event == "call" and any(one.f_code.co_filename.startswith(OURS) for one in (frame, frame.f_back)):
            self.of[frame.f_code.co_name] += 1

    @property
    def per_step(self):
        return sum(self.of.values()) / (LAST - FIRST)


@pytest.fixture
def calls():
    yield Calls()
    sys.setprofile(None)


def make_model():
    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x, **_):
            return {"loss": ((self.layer(x) - 1) ** 2).mean()}

        def training_step(self, batch, _):
            loss = self(batch)["loss"]
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    return Model()


OPTIONS = {"log_every": 1000, "system": False, "csv": False}


def test_a_step_of_the_trainer(tmp_path, calls):
    class Watch(transformers.TrainerCallback):
        def on_step_end(self, *_, **__):
            calls.end_step()

    telemetry = our_transformers.TelemetryCallback(log_dir=tmp_path, **OPTIONS)
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=LAST + 2,
        logging_steps=1000,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    data = [{"x": torch.randn(4)} for _ in range(8)] * 100
    transformers.Trainer(
        model=make_model(), args=args, train_dataset=data, callbacks=[Watch(), telemetry]
    ).train()

    assert 0 < calls.per_step <= 30, calls.of.most_common()


def test_a_step_of_lightning(tmp_path, calls):
    class Watch(lightning.Callback):
        def on_train_batch_end(self, *_, **__):
            calls.end_step()

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=LAST + 2,
        log_every_n_steps=1000,
        logger=our_lightning.TelemetryLightningLogger(log_dir=tmp_path, **OPTIONS),
        callbacks=[Watch(), our_lightning.TelemetryCallback()],
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(make_model(), torch.utils.data.DataLoader(torch.randn(400, 4), batch_size=4))

    assert 0 < calls.per_step <= 30, calls.of.most_common()


def test_a_step_of_accelerate(tmp_path, calls):
    for state in ("AcceleratorState", "GradientState", "PartialState"):
        getattr(accelerate.state, state)._reset_state()
    tracker = our_accelerate.TelemetryTracker(log_dir=tmp_path, **OPTIONS)
    accelerator = accelerate.Accelerator(cpu=True, log_with=[tracker])
    model = make_model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))
    tracker.watch(accelerator)
    accelerator.init_trackers("project")
    for step in range(1, LAST + 2):
        loss = model(torch.ones(2, 4))["loss"]
        accelerator.backward(loss)
        optimizer.step()
        accelerator.log({"loss": loss.item(), "learning_rate": 1e-4}, step=step)
        calls.end_step()
    accelerator.end_training()

    assert 0 < calls.per_step <= 30, calls.of.most_common()
