"""The options of the W&B exporter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from toolkit.telemetry.core.checks import boolean, one_of, optional, text
from toolkit.telemetry.core.fields import option
from toolkit.telemetry.mirrors.shared.exporter import Exporter

if TYPE_CHECKING:
    from toolkit.telemetry.core.sink import Sink
    from toolkit.telemetry.mirrors.shared.exporter import ExportedRun


@dataclass(frozen=True, kw_only=True)
class WandbOptions(Exporter):
    """Weights & Biases."""

    NEEDS: ClassVar = ("wandb", "wandb")

    wandb: bool = option(False, "Send the run to Weights & Biases.", boolean)
    wandb_project: str | None = option(
        None, "W&B project; default: `project`, else `ai-toolkit`.", optional(text)
    )
    wandb_run_name: str | None = option(None, "W&B run name; default: the run's name.", optional(text))
    wandb_mode: str | None = option(
        None,
        "W&B mode; default: `WANDB_MODE`, else `online` with an API key and `offline` without one.",
        optional(one_of("online", "offline", "disabled")),
    )

    def make_sink(self, run: ExportedRun) -> Sink | None:
        """Return the exporter where `wandb` is on."""
        if not self.wandb:
            return None
        from toolkit.telemetry.mirrors.wandb.exporter import WandbExporter

        return WandbExporter(
            run.folder,
            project=self.wandb_project or run.project or "ai-toolkit",
            run_name=self.wandb_run_name or run.display_name,
            run_id=run.run_id,
            mode=self.wandb_mode,
            span_filter=run.span_filter,
        )

    def offline_changes(self) -> Mapping[str, Any]:
        """Return that W&B keeps the run on the machine, for `wandb sync`."""
        return {"wandb_mode": "offline"} if self.wandb_mode in (None, "online") else {}
