"""The modules of W&B's package that scripts reach through it, such as `wandb.sdk.wandb_run.Run` in a type hint."""

from __future__ import annotations

import secrets
import string
from typing import Any, Final

from toolkit.telemetry.compat import wandb_plots
from toolkit.telemetry.compat.stand_ins import stand_in
from toolkit.telemetry.compat.wandb_artifacts import Artifact
from toolkit.telemetry.compat.wandb_config import Config
from toolkit.telemetry.compat.wandb_files_media import Audio, Html, Video
from toolkit.telemetry.compat.wandb_media import Histogram, Image, Plotly, Table
from toolkit.telemetry.compat.wandb_run import Run
from toolkit.telemetry.compat.wandb_summary import Summary

_LETTERS: Final = string.digits + string.ascii_lowercase


def generate_id(length: int = 8) -> str:
    """Return an id that no other run has."""
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


class Part:
    """A module by its attributes; one that it does not have is a stand-in."""

    def __init__(self, name: str, **known: Any) -> None:
        self.__name__ = name
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(f"{self.__name__}.{name}")


_runid: Final = Part("wandb.sdk.lib.runid", generate_id=generate_id)

util: Final = Part("wandb.util", generate_id=generate_id)
data_types: Final = Part(
    "wandb.data_types",
    Audio=Audio,
    Histogram=Histogram,
    Html=Html,
    Image=Image,
    Plotly=Plotly,
    Table=Table,
    Video=Video,
    image=Part("wandb.sdk.data_types.image", Image=Image),
    video=Part("wandb.sdk.data_types.video", Video=Video, util=util),
)
plot: Final = Part(
    "wandb.plot",
    **{
        name: getattr(wandb_plots, name)
        for name in (
            *("CustomChart", "bar", "confusion_matrix", "histogram", "line", "line_series", "plot_table"),
            *("pr_curve", "roc_curve", "scatter", "visualize"),
        )
    },
)
sdk: Final = Part(
    "wandb.sdk",
    Artifact=Artifact,
    Config=Config,
    Run=Run,
    Summary=Summary,
    data_types=data_types,
    lib=Part("wandb.sdk.lib", runid=_runid),
    wandb_config=Part("wandb.sdk.wandb_config", Config=Config),
    wandb_run=Part("wandb.sdk.wandb_run", Run=Run),
    wandb_summary=Part("wandb.sdk.wandb_summary", Summary=Summary),
)
