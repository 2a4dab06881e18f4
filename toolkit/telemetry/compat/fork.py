"""The API of ai-toolkit's telemetry fork on top of this package's logger, for code written for the fork.

Only the signatures are the fork's. Records, files and control are this package's: a run is resumed in its folder
instead of overwriting its CSV file, NaN is written as valid JSON, and a request is answered once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard, guarded
from toolkit.telemetry.logger.logger import TelemetryLogger as Logger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.machine.start_fields import (
    lora_fields,
    model_fields,
    parameter_counts,
    training_fields,
)
from toolkit.telemetry.logger.options import run_name_from_config
from toolkit.telemetry.runfolder.layout import CONTROL, METRICS_CSV, METRICS_JSONL
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE

_guard = Guard()
"""For failures before there is a run."""
_COUNTS: Final = ("total_params", "trainable_params")


class TelemetryLogger:
    """The fork's logger, with the logger as `telemetry`. Only invalid options raise, when it is created."""

    def __init__(
        self,
        run_name: str,
        log_dir: str | os.PathLike[str] = "./logs",
        enable_tensorboard: bool = False,
        enable_wandb: bool = False,
        **options: Any,
    ) -> None:
        mirrors: dict[str, Any] = {"tensorboard": bool(enable_tensorboard), "wandb": bool(enable_wandb)}
        if enable_wandb:
            mirrors["wandb_project"] = "ai-toolkit"
        # The fork wrote every step, and always into the folder with the run's name.
        known = {"log_dir": log_dir, "log_every": 1, "resume": True, **mirrors}
        self.telemetry = Logger(run_name, **{**known, **options})
        self.run_name = run_name
        self.enable_tensorboard = enable_tensorboard
        self.enable_wandb = enable_wandb
        self.log_dir = Path(log_dir)
        self.run_log_dir = self.telemetry.run_folder or self.log_dir / run_name
        self.jsonl_path = self.run_log_dir / METRICS_JSONL
        self.csv_path = self.run_log_dir / METRICS_CSV
        self.control_path = self.run_log_dir / CONTROL
        self.guard = self.telemetry.guard
        self.is_live = True
        self._log_every = self.telemetry.log_every
        self._returned: Any = None

    @guarded
    def log_start(
        self,
        config: Mapping[str, Any] | None = None,
        lora_config: Mapping[str, Any] | None = None,
        model_info: Mapping[str, Any] | None = None,
        training_info: Mapping[str, Any] | None = None,
    ) -> None:
        """Write what is being trained and how."""
        model = dict(model_info or {})
        self.telemetry.log_start(
            config=config,
            lora=lora_config,
            model={name: model[name] for name in _COUNTS if name in model},
            # Under the fork's own names, which have no prefix.
            training={**model, **(training_info or {})},
        )

    @guarded
    def log_step(
        self, global_step: int, epoch: int | None = None, metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Log one training step."""
        self.telemetry.log_step(global_step, **{"epoch": epoch, **_without(metrics, "global_step")})

    @guarded
    def log_epoch(self, epoch: int, metrics: Mapping[str, Any] | None = None) -> None:
        """Log the end of an epoch."""
        self.telemetry.log_epoch(epoch, **_without(metrics, "epoch"))

    @guarded
    def log_checkpoint(
        self, global_step: int, checkpoint_path: str | os.PathLike[str], is_best: bool = False
    ) -> None:
        """Log a checkpoint that was saved."""
        self.telemetry.log_checkpoint(global_step, checkpoint_path, is_best=is_best)

    @guarded
    def log_eval(self, global_step: int, metrics: Mapping[str, Any] | None = None) -> None:
        """Log an evaluation; its metrics are named `eval/<name>`, as in the fork."""
        given = _without(metrics, "global_step")
        fields = {f"eval/{name}": value for name, value in given.items()}
        if "val_loss" in given:
            # The name that pages and detectors look for.
            fields["val_loss"] = given["val_loss"]
        self.telemetry.log_eval(global_step, **fields)

    @guarded
    def log_control_change(self, old_value: Any, new_value: Any, source: str = "dashboard") -> None:
        """Log a change that the script made by itself; one returned by `check_control_file` is already logged."""
        if self._returned is not None:
            returned, self._returned = self._returned, None
            if returned == (new_value.get("log_every") if isinstance(new_value, Mapping) else new_value):
                return
        internals(self.telemetry).put(CONTROL_CHANGE, {"old": old_value, "new": new_value, "source": source})

    @guarded
    def check_control_file(self) -> dict[str, Any] | None:
        """Return the requests since the last call, once; None if there are none.

        A new `log_every` is already applied. Declared actions are listed under `actions`, knobs are under their names.
        """
        found: dict[str, Any] = {}
        now = self.telemetry.log_every
        if now != self._log_every:
            self._log_every = found["log_every"] = now
        for request in self.telemetry.take_requests():
            if request.value is None:
                found.setdefault("actions", []).append(request.name)
            else:
                found[request.name] = request.value
        if not found:
            return None
        self._returned = found.get("log_every", self._returned)
        return {**found, "timestamp": time.time()}

    def close(self) -> None:
        """End the run."""
        self.telemetry.close()
        self.is_live = False

    def __enter__(self) -> TelemetryLogger:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.telemetry.__exit__(kind, error, trace)
        self.is_live = False


def get_run_name(config: Any) -> str:
    """Return the job's name, or one made from the time."""
    return run_name_from_config(_block(config)) or time.strftime("run-%Y%m%d_%H%M%S")


def extract_lora_metadata(network_config: Any) -> dict[str, Any]:
    """Return the LoRA fields that a `network` block states: defaults are the trainer's, and may change with it."""
    return lora_fields(_block(network_config))


def extract_model_info(model_config: Any, sd_model: Any = None) -> dict[str, Any]:
    """Return what a `model` block states, and how many parameters the network of `sd_model` has, if there is one."""
    info = model_fields({"model": _block(model_config)})
    with _guard.catch("counting the network's parameters"):
        parameters = getattr(getattr(sd_model, "network", None), "parameters", None)
        if callable(parameters):
            info["total_params"], info["trainable_params"] = parameter_counts(parameters())
    return info


def extract_training_info(train_config: Any) -> dict[str, Any]:
    """Return the training setup that a `train` block states."""
    return training_fields({"train": _block(train_config)})


def _block(given: Any) -> Mapping[str, Any]:
    """Return a block of a configuration as a mapping; ai-toolkit turns blocks into objects."""
    return given if isinstance(given, Mapping) else getattr(given, "__dict__", {})


def _without(metrics: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """Return metrics without one that is an argument of its own."""
    return {str(key): value for key, value in (metrics or {}).items() if key != name}
