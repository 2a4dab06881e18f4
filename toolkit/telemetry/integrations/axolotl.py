"""A plugin for Axolotl, named in its YAML with a `telemetry:` block, which records trainings as runs."""

# Every hook of a plugin has the arguments that Axolotl gives it.
# ruff: noqa: ARG002

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import axolotl
from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel, Field, field_validator
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from toolkit.telemetry.core.guard import Guard, guarded
from toolkit.telemetry.core.lifetime import code_of
from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.integrations.logger_setup import CLOCK_STEP_S, run_id_in
from toolkit.telemetry.integrations.method_patches import Following, MethodPatches
from toolkit.telemetry.integrations.transformers import TelemetryCallback
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.options import OptionsError
from toolkit.telemetry.timing.names import DATALOADER_INIT, MODEL_INIT

_ADAPTER_LOAD: Final = "adapter_load"
_WEIGHTS: Final = (".safetensors", ".bin", ".pt")


class TelemetryArgs(BaseModel):
    """What the plugin adds to Axolotl's configuration; Axolotl itself checks it with the rest."""

    telemetry: dict[str, Any] | bool | None = Field(
        default=None,
        json_schema_extra={
            "description": "How the run is logged by ai-toolkit-telemetry, such as {log_dir: ./logs, log_every: 10}"
        },
    )

    @field_validator("telemetry", mode="before")
    @classmethod
    def _is_a_block(cls, given: Any) -> Any:
        """Raise ValueError for an invalid block; pydantic shows its message, which names what is allowed."""
        _run_of({"telemetry": given})
        return given


class TelemetryPlugin(BasePlugin):  # type: ignore[misc]  # Axolotl is not installed where types are checked
    """Records a training by Axolotl as a run, starting with its data loading, and carries out control requests.

    Nothing it does raises into Axolotl, except an invalid `telemetry:` block, before anything is loaded.
    """

    def __init__(self) -> None:
        """Make a plugin; Axolotl does so for each configuration that it loads."""
        super().__init__()
        self.is_live = False
        """Whether the hooks do anything."""
        self._run = FrameworkRun(enabled=False)
        self._trained: tuple[int, float] | None = None
        """The last step and when the Trainer finished: the final weights are saved later."""

    @property
    def guard(self) -> Guard:
        """Counts failures of this plugin."""
        return self._run.guard

    @property
    def log(self) -> TelemetryLogger | None:
        """The logger of the run; None while nothing is trained."""
        return self._run.log if self._run.is_live else None

    # The configuration.

    def get_input_args(self) -> str:
        """Return the class of the keys that this plugin accepts."""
        return f"{__name__}.{TelemetryArgs.__name__}"

    def register(self, cfg: Any) -> None:
        """Read the options of a YAML that is not checked yet; an invalid block is reported when Axolotl checks it."""
        try:
            self._run = _run_of(cfg)
        except OptionsError:
            self._run = FrameworkRun(enabled=False)
        self.is_live = self._run.options.enabled

    # Before the training.

    @guarded
    def load_datasets(self, cfg: Any, preprocess: bool = False) -> None:
        """Open the run: of Axolotl's commands, only `train` loads data this way."""
        if preprocess:
            return
        if self.open(cfg) is not None:
            self._run.begin_phase(DATALOADER_INIT)

    @guarded
    def pre_model_load(self, cfg: Any) -> None:
        """Begin to time loading the model."""
        if self.log is not None:
            self._run.end_phases(DATALOADER_INIT)
            self._run.begin_phase(MODEL_INIT)

    @guarded
    def pre_lora_load(self, cfg: Any, model: Any) -> None:
        """Begin to time loading the adapter; Axolotl calls this for models without one, too."""
        if self.log is not None and cfg.get("adapter"):
            self._run.begin_phase(_ADAPTER_LOAD, self.log.span(_ADAPTER_LOAD, adapter=cfg.get("adapter")))

    @guarded
    def post_lora_load(self, cfg: Any, model: Any) -> None:
        """End loading the adapter."""
        self._run.end_phases(_ADAPTER_LOAD)

    @guarded
    def post_model_load(self, cfg: Any, model: Any) -> None:
        """End loading the model."""
        self._run.end_phases(MODEL_INIT)

    @guarded(otherwise=[])
    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[TrainerCallback]:
        """Return a callback that opens the run, if it is not open yet, and watches the training."""
        patches = MethodPatches(self.guard)

        def train(*_: Any, **__: Any) -> Following:
            try:
                yield
            except BaseException as error:
                # Neither the Trainer's callbacks nor Axolotl's plugins are called then.
                self._close(error)
                raise
            finally:
                patches.undo()
            self._trained = trainer.state.global_step, time.time()

        patches.follow(trainer, "train", train)
        callback = _JobCallback(phases=self._run.wants_phases)
        callback.open_log = partial(self.open, cfg)
        return [callback]

    # After it.

    @guarded
    def post_train_unload(self, cfg: Any) -> None:
        """Record the weights that Axolotl has saved, and close the run: finished, or stopped on request."""
        if self.log is not None and self._trained is not None:
            (step, since), folder = self._trained, Path(cfg.get("output_dir"))
            with self.guard.catch("recording the final weights"):
                if any(
                    path.suffix in _WEIGHTS and path.stat().st_mtime > since - CLOCK_STEP_S
                    for path in folder.iterdir()
                ):
                    self.log.log_checkpoint(step, folder, is_final=True)
        self._close(None)

    # Internal.

    def open(self, cfg: Any) -> TelemetryLogger | None:
        """Return the logger of the run; open one that is not open, or that of the checkpoint that is resumed."""
        if self.log is not None:
            return self.log
        self._run.open_run(_name_of(cfg), cfg.to_dict(), _run_to_resume(cfg))
        self._run.begin_application()
        return self.log

    def _close(self, error: BaseException | None) -> None:
        """End the run, if there is one."""
        self._trained = None
        if code_of(error) == 0:
            # On Ctrl-C, Axolotl saves the weights and exits with code 0.
            self._run.end_run(None, "interrupted")
        else:
            self._run.end_run(error)


class _JobCallback(TelemetryCallback):
    """Opens the run when a training begins, not before: `axolotl evaluate` creates a trainer, too."""

    open_log: Callable[[], TelemetryLogger | None] | None = None
    """None in a copy, which records nothing."""

    def on_train_begin(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the run if it is not open, and write the start record."""
        open_log, self.open_log = self.open_log, None
        if open_log is not None:
            with self.guard.catch("beginning to record a training of Axolotl"):
                self.given = self.log = open_log()
        if self.given is not None:
            super().on_train_begin(args, state, control, **kwargs)

    def describe(self, args: Any) -> dict[str, Any]:
        """Return what the start record has besides Axolotl's own configuration, which the logger has."""
        return {
            "training_arguments": args.to_dict(),
            "axolotl_version": getattr(axolotl, "__version__", None),
        }


def _run_of(cfg: Mapping[str, Any]) -> FrameworkRun:
    """Return the run of a configuration, which is not open; naming the plugin switches it on.

    Raises:
        OptionsError: the block is invalid; the message names the key, its value and what is allowed.
    """
    block = cfg.get("telemetry")
    if block is None or isinstance(block, bool):
        return FrameworkRun(enabled=block is not False)
    if not isinstance(block, Mapping):
        raise OptionsError(f"telemetry is {block!r:.200}; it must be true, false or a mapping of options")
    options = dict(block)
    name = options.pop("run_name", None)
    if name is not None and not (isinstance(name, str) and name):
        raise OptionsError(f"telemetry.run_name is {name!r:.200}; it must be a non-empty text")
    return FrameworkRun(options, run_name=name)


def _name_of(cfg: Any) -> str:
    named = next((cfg.get(key) for key in ("wandb_name", "mlflow_run_name") if cfg.get(key)), None)
    return str(named or Path(cfg.get("output_dir") or "").name or "axolotl")


def _run_to_resume(cfg: Any) -> str | None:
    """Return the id of the run whose checkpoint the training resumes: the one named, or the newest if configured."""
    checkpoint, folder = cfg.get("resume_from_checkpoint"), Path(cfg.get("output_dir") or "")
    if checkpoint is None and cfg.get("auto_resume_from_checkpoints") and folder.is_dir():
        checkpoint = get_last_checkpoint(folder)  # type: ignore[no-untyped-call]
    return run_id_in(checkpoint)
