"""The name, owner and location of a run, as W&B's attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.telemetry.compat.null_object import warn_once
from toolkit.telemetry.compat.wandb_config import Settings
from toolkit.telemetry.logger import TelemetryLogger


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What a script states about a run when it begins."""

    name: str
    project: str | None = None
    entity: str | None = None
    group: str | None = None
    job_type: str | None = None
    notes: str | None = None
    tags: tuple[str, ...] = ()


class RunIdentity:
    """The descriptive attributes of a run. Later changes by the script are only written as records."""

    offline = True
    """Nothing is sent anywhere."""
    sweep_id = None
    """There are no sweeps here."""

    def __init__(self, info: RunInfo, telemetry: TelemetryLogger) -> None:
        self._info = info
        self.telemetry = telemetry
        self.id = telemetry.run_id or "disabled"
        """The same in all sessions of a run."""
        self.project = info.project or "uncategorized"
        self.entity, self.group, self.job_type = info.entity or "", info.group or "", info.job_type or ""
        self.path = "/".join(part for part in (self.entity, self.project, self.id) if part)

    @property
    def name(self) -> str:
        """The script's name for the run."""
        return self._info.name

    @name.setter
    def name(self, name: str) -> None:
        self._describe("name", lambda: str(name))

    @property
    def notes(self) -> str | None:
        """The script's notes."""
        return self._info.notes

    @notes.setter
    def notes(self, notes: str) -> None:
        self._describe("notes", lambda: str(notes))

    @property
    def tags(self) -> tuple[str, ...]:
        """The script's tags."""
        return self._info.tags

    @tags.setter
    def tags(self, tags: Sequence[str]) -> None:
        self._describe("tags", lambda: tuple(str(tag) for tag in tags))

    def _describe(self, what: str, value: Callable[[], Any]) -> None:
        warn_once(
            f"run.{what} = …",
            f"is only a record here: change it on the run's page, or give {what}= to wandb.init",
        )
        with self.telemetry.guard.catch(f"run.{what} = …"):
            self._info = replace(self._info, **{what: value()})
            self._note("described", {what: getattr(self._info, what)})

    def _note(self, event: str, fields: Mapping[str, Any]) -> None:
        """Write a record about the run."""
        self.telemetry.log_event(event, **fields)

    @property
    def url(self) -> str | None:
        """The run folder as a `file://` URL."""
        folder = self.telemetry.run_folder
        return folder.as_uri() if folder is not None else None

    def get_url(self) -> str | None:
        """Return `url`."""
        return self.url

    @property
    def disabled(self) -> bool:
        """Whether nothing is written."""
        return self.telemetry.run_folder is None

    @property
    def settings(self) -> Settings:
        """The settings of the run."""
        return Settings(
            run_id=self.id,
            run_name=self.name,
            project=self.project,
            entity=self.entity,
            run_group=self.group,
            root_dir=str(self.telemetry.run_folder or ""),
        )
