"""Samples of a run as series: one prompt or one name over the steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from toolkit.telemetry.runfolder.records import RESERVED, SAMPLE, Record
from toolkit.telemetry.runs.files.sample_files import SampleKind, kind_of
from toolkit.telemetry.runs.formatting import clean, short_number
from toolkit.telemetry.runs.store import RunStore

MAX_SAMPLES: Final = 10_000
_MAX_KEPT: Final = 16
"""Runs whose samples are kept; those of one run take a few MB."""
_MAX_LANES: Final = 16
"""How many samples of one step get a series each; if there are more, they follow each other in one series."""
_NOT_SHOWN: Final = frozenset(
    {*RESERVED, "global_step", "path", "prompt", "name", "caption", "index", "prompt_index", "source_path"}
)
_MAX_ABOUT: Final = 8
_MAX_TEXT: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One file that a model generated."""

    path: str
    kind: SampleKind
    step: int | None
    """None if it was logged without one."""
    caption: str = ""
    """Its own text, if the title of its series is another one."""
    about: str = ""
    """What else was logged with it, such as the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSeries:
    """Samples of one prompt or name, oldest first."""

    title: str
    """The prompt, else the name."""
    name: str = ""
    """The name under which they were logged, if that is not the title."""
    samples: tuple[Sample, ...] = ()

    @property
    def last_step(self) -> int:
        """The step of the newest sample; -1 without one."""
        return max((sample.step for sample in self.samples if sample.step is not None), default=-1)


def samples_of_run(store: RunStore, key: str) -> list[SampleSeries]:
    """Return the newest samples of a run as series; worked out again only once there are new ones."""
    newest = repr(store.events(key, (SAMPLE,), limit=1))
    return _samples_of_run(store, key, store.count_events(key).get(SAMPLE, 0), newest)  # type: ignore[arg-type]  # has a hash


@lru_cache(_MAX_KEPT)
def _samples_of_run(store: RunStore, key: str, _number: int, _newest: str) -> list[SampleSeries]:
    return sample_series(store.events(key, (SAMPLE,), limit=MAX_SAMPLES))


def sample_series(records: Iterable[Record]) -> list[SampleSeries]:
    """Return the samples in `records`, which come newest first, as series in the order in which they first appeared.

    Samples of one name or prompt at one step, such as those of several seeds, are in a series each.
    """
    lanes: dict[tuple[str, str, int], list[Record]] = {}
    seen: Counter[tuple[str, str, object, object]] = Counter()
    usable = [record for record in records if isinstance(record.get("path"), str)]
    usable.reverse()
    for record in usable:
        name, prompt = _text(record.get("name")), _text(record.get("prompt"))
        source = (name, "") if name else ("", prompt)
        at = (*source, _hashable(record.get("session")), _hashable(record.get("global_step")))
        lane = seen[at]
        seen[at] += 1
        lanes.setdefault((*source, lane if lane < _MAX_LANES else 0), []).append(record)
    of_a_list = {name for name, _, lane in lanes if lane}
    return [
        _series(name, prompt, lane, found, is_list=name in of_a_list)
        for (name, prompt, lane), found in lanes.items()
    ]


def matching_series(series: Iterable[SampleSeries], search: str) -> list[SampleSeries]:
    """Return the series with `search`, in lower case, in their texts."""
    return [
        one
        for one in series
        if search in one.title.lower()
        or search in one.name.lower()
        or any(search in sample.caption.lower() for sample in one.samples)
    ]


def thinned(samples: Sequence[Sample], places: int) -> list[Sample]:
    """Return the first, the last, and evenly spaced ones in between."""
    if len(samples) <= places:
        return list(samples)
    return [samples[round(place * (len(samples) - 1) / (places - 1))] for place in range(places)]


def _series(name: str, prompt: str, lane: int, records: Sequence[Record], *, is_list: bool) -> SampleSeries:
    texts = {_text(record.get("caption")) or _text(record.get("prompt")) for record in records}
    title = name or prompt
    if name and is_list and len(texts) == 1:
        # One of a list that is logged at each step, such as of validation prompts.
        [title] = texts
    number = f" ({lane + 1})" if lane and (not name or title == name) else ""
    return SampleSeries(
        title=f"{title or '(no prompt)'}{number}",
        name=name if name != title else "",
        samples=tuple(_sample(record, title) for record in records),
    )


def _sample(record: Record, title: str) -> Sample:
    step = record.get("global_step")
    caption = _text(record.get("caption")) or _text(record.get("prompt"))
    path = str(record["path"])
    return Sample(
        path=path,
        kind=kind_of(path),
        step=step if type(step) is int and abs(step) < 2**53 else None,
        caption=caption if caption not in (title, _text(record.get("name"))) else "",
        about=_about(record),
    )


def _about(record: Mapping[str, Any]) -> str:
    found = []
    for name, value in record.items():
        if name in _NOT_SHOWN or not isinstance(value, (str, int, float, bool)) or value == "":
            continue
        text = short_number(value) if isinstance(value, float) else str(value)
        found.append(f"{clean(name)[:40]} {clean(text)[:100]}")
    return " · ".join(found[:_MAX_ABOUT])


def _text(value: object) -> str:
    return clean(value)[:_MAX_TEXT] if isinstance(value, str) else ""


def _hashable(value: object) -> object:
    return value if isinstance(value, (str, int, float, type(None))) else repr(value)
