"""The submodules of W&B's package that scripts use, such as `wandb.sdk.wandb_run.Run` in a type hint."""

from __future__ import annotations

import secrets
import string
from typing import Any, Final

from toolkit.telemetry.compat import wandb_plots
from toolkit.telemetry.compat.null_object import null_object
from toolkit.telemetry.compat.wandb_artifacts import Artifact
from toolkit.telemetry.compat.wandb_config import Config
from toolkit.telemetry.compat.wandb_files_media import Audio, Html, Video
from toolkit.telemetry.compat.wandb_media import Histogram, Image, Plotly, Table
from toolkit.telemetry.compat.wandb_run import Run
from toolkit.telemetry.compat.wandb_summary import Summary

_LETTERS: Final = string.digits + string.ascii_lowercase


class Error(Exception):
    """The base of W&B's exceptions, for scripts that catch them; nothing here raises one."""


class CommError(Error):
    """W&B could not be reached."""


class UsageError(Error):
    """W&B was called wrongly."""


class _Errors:
    """`wandb.errors`: an exception class for every name, because `except` accepts nothing else."""

    def __init__(self) -> None:
        self.Error, self.CommError, self.UsageError = Error, CommError, UsageError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not name[:1].isupper():
            return null_object(f"wandb.errors.{name}")
        self.__dict__[name] = made = type(name, (Error,), {})
        return made


class ModuleProxy:
    """A module made of attributes; an unknown attribute is a placeholder."""

    def __init__(self, name: str, **known: Any) -> None:
        self.__name__ = name
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return null_object(f"{self.__name__}.{name}")


def generate_id(length: int = 8) -> str:
    """Return a random id."""
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


_PLOTS: Final = (
    *("bar", "confusion_matrix", "histogram", "line", "line_series", "plot_table"),
    *("pr_curve", "roc_curve", "scatter", "visualize"),
)

errors = _Errors()
util: Final = ModuleProxy("wandb.util", generate_id=generate_id)
data_types: Final = ModuleProxy(
    "wandb.data_types",
    Audio=Audio,
    Histogram=Histogram,
    Html=Html,
    Image=Image,
    Plotly=Plotly,
    Table=Table,
    Video=Video,
    image=ModuleProxy("wandb.sdk.data_types.image", Image=Image),
    video=ModuleProxy("wandb.sdk.data_types.video", Video=Video, util=util),
)
plot: Final = ModuleProxy("wandb.plot", **{name: getattr(wandb_plots, name) for name in _PLOTS})
sdk: Final = ModuleProxy(
    "wandb.sdk",
    Artifact=Artifact,
    Config=Config,
    Run=Run,
    Summary=Summary,
    data_types=data_types,
    lib=ModuleProxy("wandb.sdk.lib", runid=ModuleProxy("wandb.sdk.lib.runid", generate_id=generate_id)),
    wandb_config=ModuleProxy("wandb.sdk.wandb_config", Config=Config),
    wandb_run=ModuleProxy("wandb.sdk.wandb_run", Run=Run),
    wandb_summary=ModuleProxy("wandb.sdk.wandb_summary", Summary=Summary),
)
