"""What each of several runs is called: short, and never the same for two of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from toolkit.telemetry.privacy.masking import mask_secrets
from toolkit.telemetry.runs.settings import differing_settings, level_text, setting_text

_MOST_SETTINGS: Final = 3
_MOST_COMPARED: Final = 1_000
_LONGEST: Final = 16
_SHORT: Final = {"learning_rate": "lr"}


class RunName(NamedTuple):
    """What a label is made of."""

    name: str
    place: str
    """Its folder or file."""
    id: str
    """Another for each run of a place."""
    settings: Callable[[], Mapping[str, Any]]
    """Called only if another run has the same name."""


class Label(NamedTuple):
    """A run's name; if another run has it too, also its folder, and the settings in which they differ."""

    name: str
    folder: str = ""
    differs: str = ""

    @property
    def text(self) -> str:
        """All of it."""
        is_in_it = PurePath(self.folder).name.startswith(self.name)
        named = self.folder if is_in_it else f"{self.name} ({self.folder})"
        return " ".join(filter(None, (named if self.folder else self.name, self.differs)))


def labels_of(runs: Sequence[RunName]) -> list[Label]:
    """Return a label for each of `runs`."""
    labels = [Label(run.name or PurePath(run.place).name) for run in runs]
    texts = Counter(label.name for label in labels)
    places: dict[str, list[int]] = {}
    for at, label in enumerate(labels):
        if texts[label.name] > 1:
            places.setdefault(label.name, []).append(at)
    for same in places.values():
        some = [runs[at] for at in same]
        for at, folder, differs in zip(same, _folders(some), _differences(some), strict=True):
            labels[at] = labels[at]._replace(folder=folder, differs=differs)
    # A folder may be called as another run is.
    texts = Counter(label.text for label in labels)
    return [
        label if texts[label.text] == 1 else label._replace(folder=f"{run.place} {run.id}".strip())
        for label, run in zip(labels, runs, strict=True)
    ]


def _folders(runs: Sequence[RunName]) -> list[str]:
    """Return as much of the end of each place as tells it from the others, with the id if they share one."""
    parts = [PurePath(run.place).parts for run in runs]
    ends: list[str] = []
    for size in range(1, max(map(len, parts), default=0) + 1):
        ends = ["/".join(part[-size:]) for part in parts]
        if len(set(ends)) == len(set(parts)):
            break
    counts = Counter(ends)
    return [end if counts[end] == 1 else f"{end} {run.id[:8]}" for end, run in zip(ends, runs, strict=True)]


def _differences(runs: Sequence[RunName]) -> list[str]:
    if len(runs) > _MOST_COMPARED:
        return [""] * len(runs)
    settings = [run.settings() for run in runs]
    chosen: list[str] = []
    for name in differing_settings(settings):
        if any(len(setting_text(found.get(name))) > _LONGEST for found in settings):
            continue
        chosen.append(name)
        different = {tuple(level_text(found.get(one)) for one in chosen) for found in settings}
        if len(different) == len(runs) or len(chosen) == _MOST_SETTINGS:
            break
    shown = mask_secrets([{name: found[name] for name in chosen if name in found} for found in settings])
    return [
        " ".join(
            f"{_SHORT.get(name, name.rpartition('.')[2])}={setting_text(value)}"
            for name, value in found.items()
        )
        for found in shown
    ]
