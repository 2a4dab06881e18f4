"""What a run is called, whose it is and where it lies, in W&B's words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.telemetry.compat.stand_ins import say_once
from toolkit.telemetry.compat.wandb_settings import Settings
from toolkit.telemetry.logger import TelemetryLogger


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a script says of a run when it begins."""

    name: str
    project: str | None = None
    entity: str | None = None
    group: str | None = None
    job_type: str | None = None
    notes: str | None = None
    tags: tuple[str, ...] = ()


class Identity:
    """The part of a run that says what it is. What a script changes of it later is a record, and on no page."""

    def __init__(self, about: About, telemetry: TelemetryLogger) -> None:
        self._about = about
        self.telemetry = telemetry

    @property
    def id(self) -> str:
        """What identifies the run across its sessions."""
        return self.telemetry.run_id or "disabled"

    @property
    def name(self) -> str:
        """What the script calls the run."""
        return self._about.name

    @name.setter
    def name(self, name: str) -> None:
        say_once(
            "run.name = …", "is only a record here: rename the run on its page, or give name= to wandb.init"
        )
        self._describe("name", lambda: str(name))

    @property
    def notes(self) -> str | None:
        """What the script says of it."""
        return self._about.notes

    @notes.setter
    def notes(self, notes: str) -> None:
        say_once(
            "run.notes = …", "is only a record here: write on the run's page, or give notes= to wandb.init"
        )
        self._describe("notes", lambda: str(notes))

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, as the script has them."""
        return self._about.tags

    @tags.setter
    def tags(self, tags: Sequence[str]) -> None:
        say_once(
            "run.tags = …", "is only a record here: tag the run on its page, or give tags= to wandb.init"
        )
        self._describe("tags", lambda: tuple(str(tag) for tag in tags))

    def _describe(self, what: str, value: Callable[[], Any]) -> None:
        with self.telemetry.guard.catch(f"run.{what} = …"):
            self._about = replace(self._about, **{what: value()})
            self._note("described", {what: getattr(self._about, what)})

    def _note(self, event: str, fields: Mapping[str, Any]) -> None:
        """Put something that a script said into the run's records."""
        self.telemetry.log_event(event, **fields)

    @property
    def url(self) -> str | None:
        """Where the run folder is, as an address of this machine."""
        folder = self.telemetry.run_folder
        return folder.as_uri() if folder is not None else None

    def get_url(self) -> str | None:
        """Return `url`."""
        return self.url

    @property
    def path(self) -> str:
        """Project and id."""
        return "/".join(part for part in (self.entity, self.project, self.id) if part)

    @property
    def project(self) -> str:
        """What it belongs to."""
        return self._about.project or "uncategorized"

    @property
    def entity(self) -> str:
        """Whose it is, as the script says."""
        return self._about.entity or ""

    @property
    def group(self) -> str:
        """What it is one of several of."""
        return self._about.group or ""

    @property
    def job_type(self) -> str:
        """What kind of work it is."""
        return self._about.job_type or ""

    @property
    def offline(self) -> bool:
        """Always: nothing is sent anywhere."""
        return True

    @property
    def disabled(self) -> bool:
        """Whether nothing is written."""
        return self.telemetry.run_folder is None

    @property
    def settings(self) -> Settings:
        """What was settled for it."""
        return Settings(
            run_id=self.id,
            run_name=self.name,
            project=self.project,
            entity=self.entity,
            run_group=self.group,
            root_dir=str(self.telemetry.run_folder or ""),
        )

    @property
    def sweep_id(self) -> None:
        """There are no sweeps here."""
        return None
