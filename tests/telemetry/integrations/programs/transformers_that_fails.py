"""A training whose exception ends the script, is caught by it, or is an interruption."""

import sys
from pathlib import Path

from transformers import Trainer, TrainingArguments

from tests.telemetry.integrations.odd_trainers import At
from tests.telemetry.integrations.tiny_language_model import make_examples, make_model
from toolkit.telemetry.integrations.transformers import TelemetryCallback

folder, how = Path(sys.argv[1]), sys.argv[2]
error = KeyboardInterrupt() if how == "interrupted" else RuntimeError("the disk of the data is gone")
args = TrainingArguments(
    output_dir=str(folder / "out"), max_steps=4, report_to="none", use_cpu=True, disable_tqdm=True
)


def fail(_):
    raise error


trainer = Trainer(
    model=make_model(),
    args=args,
    train_dataset=make_examples(8),
    callbacks=[TelemetryCallback(log_dir=folder / "logs", system=False), At(2, fail)],
)
try:
    trainer.train()
except RuntimeError:
    if how != "caught":
        raise
