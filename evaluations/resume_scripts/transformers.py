"""The same training by the Hugging Face Trainer, which saves and loads by itself."""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback, TrainingArguments

from evaluations.resume_scripts import task
from toolkit.telemetry.integrations.transformers import TelemetryCallback

settings, job, options = task.read_job()


class OrderedTrainer(Trainer):
    """A Trainer with an order of its own."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return task.Order(settings["data_seed"], job["skip"])


class Ending(TrainerCallback):
    """Ends the training where the job says, after the checkpoint of that step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop after a step without a checkpoint."""
        if state.global_step % args.save_steps:
            control.should_training_stop |= task.end_step(state.global_step, job)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Stop after a step with a checkpoint."""
        control.should_training_stop |= task.end_step(state.global_step, job)


model = task.TinyModel(settings, job)
trainer = OrderedTrainer(
    model=model,
    args=TrainingArguments(
        output_dir="saved",
        max_steps=settings["max_steps"],
        per_device_train_batch_size=settings["batch_size"],
        gradient_accumulation_steps=settings["accumulation"],
        learning_rate=settings["learning_rate"],
        weight_decay=settings["weight_decay"],
        # The Trainer would clip what is still scaled, since it knows nothing of this scaler.
        max_grad_norm=0.0 if settings["loss_scaling"] else settings["max_grad_norm"],
        label_smoothing_factor=settings["label_smoothing"],
        warmup_steps=settings["warmup_steps"],
        lr_scheduler_kwargs={
            name: settings[name] for name in (*task.REWARM, "resumed_at") if name in settings
        },
        seed=settings["seed"],
        data_seed=settings["data_seed"],
        ignore_data_skip=job["from_start"],
        eval_strategy="steps",
        eval_steps=settings["eval_every"],
        save_steps=settings["save_every"],
        logging_steps=10,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    ),
    train_dataset=task.Windows(0, task.ROWS),
    eval_dataset=task.Windows(task.ROWS, task.EVALUATED),
    optimizers=task.optimizer_for(model, settings),
    callbacks=[TelemetryCallback(run_name="run", phases=True, **options), Ending()],
)
if settings["loss_scaling"]:
    # Without a GPU the Trainer makes none, but it uses, saves and loads this one.
    trainer.accelerator.scaler = task.scaler_for(settings)
trainer.train(resume_from_checkpoint=job["resume_from"])
