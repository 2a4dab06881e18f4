"""Judges a resumed run while it runs: in its first tens of steps, and never again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.diagnostics.catalogue import RESUME_MISMATCH, finding_of
from toolkit.telemetry.diagnostics.finding import INFO, Finding
from toolkit.telemetry.diagnostics.incident import Incident
from toolkit.telemetry.diagnostics.metric_aliases import LOSS, LR, Row
from toolkit.telemetry.diagnostics.resume import judge as resume_judge
from toolkit.telemetry.diagnostics.resume.judge import DIFFERENT, RNG, Side
from toolkit.telemetry.runfolder.evidence.batches import Batches, batches_file, read_batches
from toolkit.telemetry.runfolder.key_values import configured
from toolkit.telemetry.runfolder.records import ENVIRONMENT, START, STATE, STEP, Record

_LOOKS: Final = (4, 8, 16, 32)
"""After so many records of the new session it is judged."""
_SURE: Final = 0.95
_MOST: Final = 20_000
"""Losses of earlier sessions that are kept: the newest."""
_MOST_BYTES: Final = 4 * 1024**2


class ResumeWatch:
    """Collects what earlier sessions did, and compares the first records of this one with it."""

    def __init__(self, folder: Path, *, session: int) -> None:
        self._folder = folder
        self._session = session
        self._old, self._new = Side(), Side()
        self._before = 0
        self._starts: dict[int, Record] = {}
        self._row = Row()
        self._looks = list(_LOOKS)

    @property
    def is_over(self) -> bool:
        """Whether it has judged for the last time."""
        return not self._looks

    def take(self, records: Iterable[Record]) -> None:
        """Read the next records of the file."""
        for record in records:
            event, number = record.get("event"), record.get("session")
            if type(number) is not int or event not in (START, ENVIRONMENT, STATE, STEP):
                continue
            side = self._new if number == self._session else self._old
            if event in (START, ENVIRONMENT):
                # A second start of a session only adds to the first.
                self._starts[number] = start = {**record, **self._starts.get(number, {})}
                side.settings, side.data = configured(start), resume_judge.data_of(start)
                resumed = start.get("resumed_from_step")
                side.resumed_from = resumed if type(resumed) is int else None
            elif event == STATE:
                side.states.append(record)
            else:
                self._before = self._before if side is self._new else number
                self._take_step(side, record)

    def _take_step(self, side: Side, record: Record) -> None:
        row = self._row
        row.read(record, 0)
        pairs: tuple[tuple[dict[int, float], Any], ...] = (
            (side.loss, row.values.get(LOSS)),
            (side.lr, row.values.get(LR)),
            (side.epoch, record.get("epoch")),
        )
        for values, value in pairs:
            if type(value) is float or type(value) is int:
                values[row.step] = value
                if len(values) > _MOST:
                    del values[next(iter(values))]

    def _batches(self) -> Batches:
        """Return the batches, unless there are so many that reading them would hold up the training."""
        try:
            is_short = batches_file(self._folder).stat().st_size <= _MOST_BYTES
        except OSError:
            is_short = False
        return read_batches(self._folder) if is_short else Batches()

    def look(self) -> Finding | None:
        """Return the finding about this resume, where it is due and surely not the same training."""
        if not self._looks or len(self._new.loss) < self._looks[0] or not self._old.loss:
            return None
        while self._looks and len(self._new.loss) >= self._looks[0]:
            del self._looks[0]
        batches = self._batches()
        self._old.batches = resume_judge.batches_of(batches, self._before)
        self._new.batches = resume_judge.batches_of(batches, self._session)
        said = resume_judge.judge(self._old, self._new, self._session)
        if said.answer != DIFFERENT or said.probability < _SURE:
            return None
        self._looks.clear()
        newest = max(self._new.loss)
        incident = Incident(
            id=f"{self._session}-{RESUME_MISMATCH}-{said.step}",
            kind=RESUME_MISMATCH,
            metric=LOSS,
            start_step=said.step,
            noticed_step=newest,
            session=self._session,
            evidence={"doubles": float(said.doubles)},
        )
        # Dropout draws other numbers: few trainings restore them, and few suffer.
        severity = INFO if said.cause == RNG else ""
        found = finding_of(incident, severity=severity, confidence=said.probability)
        return replace(found, message=said.sentence)
