"""The run that the callback and the logger of one trainer share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolkit.telemetry.core.ranks import find_rank
from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.integrations.logger_setup import GivenLog

_COPIED: Final = ("config", "has_callback", "has_trained", "run_id", "was_given_nothing", "_ranks_at_first")
"""What a copy has in common with its original, such as the one that a process started by the trainer gets."""


class SharedRun(FrameworkRun):
    """A run that was given, or one opened here, used by the callback, the logger or both of one trainer."""

    def __init__(
        self, log: GivenLog = None, *, run_name: str | None = None, phases: bool | None = None, **options: Any
    ) -> None:
        """Wait for a trainer; no folder is created yet. Raises OptionsError if an option is unknown or invalid."""
        super().__init__(log, run_name=run_name, phases=phases, **options)
        self.was_given_nothing = log is None and run_name is None and not options
        self.run_id: str | None = None
        if self.given is not None:
            self.run_name, self.run_id = run_name or self.given.run_name, self.given.run_id
        self.config: dict[str, Any] = {}
        self.has_callback = False
        """Whether a callback writes the run now."""
        self.has_start = False
        self.has_trained = False
        self.knows_its_ranks = True
        """Whether requests are possible, which all ranks carry out at the same step."""
        self._metrics: dict[str, Any] = {}
        self._ranks_at_first = find_rank().world_size

    def __reduce__(self) -> tuple[Any, ...]:
        return *super().__reduce__(), {name: getattr(self, name) for name in _COPIED}

    def open(self, default_name: str) -> bool:
        """Open the run, as a new session if it had one before; return whether it was opened now."""
        if self.is_live or not self.options.enabled:
            return False
        log = self.open_run(default_name, run_id=self.run_id)
        self.run_id = log.run_id or self.run_id
        rank = find_rank()
        self.knows_its_ranks = self.given is None or self._ranks_at_first == rank.world_size
        if not self.knows_its_ranks:
            # Each rank has a logger that believes it is the only one. If one stopped, the others would wait for it.
            self.is_live = log.is_live and rank.rank == 0
            self.guard.report_misuse(
                "the logger was created before the trainer's processes, so they cannot agree on a step to save or stop "
                "at, and requests are off: give the callback options instead of a logger"
            )
        return self.is_live

    def begin_training(self, trainer: Any) -> None:
        """Note that a training begins; one that resumes no earlier one gets a run of its own."""
        resumes = trainer.global_step > 0 or trainer.ckpt_path is not None
        if self.has_trained and self.given is None and not self.is_live and not resumes:
            self.run_id = None
        self.has_trained = True

    def close(self, error: BaseException | None, status: str | None = None) -> None:
        """End what is open, and close the run if it was opened here."""
        self.has_start = False
        self.end_run(error, "signal" if type(error).__name__ == "SIGTERMException" else status)

    def add_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Keep metrics that were passed to the logger for the next record."""
        self._metrics.update({str(name): value for name, value in metrics.items()})

    def pop_metrics(self) -> dict[str, Any]:
        """Return the metrics that were kept, once."""
        taken, self._metrics = self._metrics, {}
        return taken
