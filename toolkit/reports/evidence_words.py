"""The numbers of a finding as words and units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from toolkit.diagnostics.finding import is_about_ranks, ranks_in_words
from toolkit.runfolder.untrusted import finite_in
from toolkit.runs.formatting import clean, count, duration, learning_rate, short_number, size


class HasEvidence(Protocol):
    """A finding, or what a page makes of one."""

    @property
    def kind(self) -> str:
        """Its kind, as the catalogue names it."""

    @property
    def evidence(self) -> Mapping[str, Any]:
        """Its numbers by name."""

    @property
    def count(self) -> int:
        """How many records it affects."""


_MIB: Final = 1024.0 * 1024.0
_MAX_SHOWN: Final = 20


def _percent(value: float) -> str:
    return f"{short_number(round(value, 1))} %"


def _mib(value: float) -> str:
    return size(value * _MIB)


def _whole(value: float) -> str:
    return count(int(value))


_WORDS: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "level": ("level before {}", short_number),
    "first": ("first values {}", short_number),
    "peak": ("highest {}", short_number),
    "ratio": ("({} times the level)", short_number),
    "now": ("last value {}", short_number),
    "now_ratio": ("({} times the level)", short_number),
    "last_good": ("last finite value {}", short_number),
    "lr": ("learning rate {}", learning_rate),
    "before": ("before that {}", learning_rate),
    "best": ("best {}", short_number),
    "best_step": ("(at step {})", _whole),
    "rise_pct": ("{} above the best", _percent),
    "noise": ("noise {}", short_number),
    "usual": ("typical before {}", short_number),
    "lost_pct": ("{} less", _percent),
    "share_pct": ("{} of each step waiting for data", _percent),
    "mean_pct": ("GPU busy {} of the time", _percent),
    "loss": ("loss {}", short_number),
    "seconds": ("{} without a step", duration),
    "usual_s": ("a step usually takes {}", duration),
    "mib_per_1k_steps": ("{} per 1,000 steps", _mib),
    "grown_mib": ("grown by {}", _mib),
    "free_mib": ("{} free", _mib),
    "rank": ("rank {}", _whole),
    "others": ("{} on the others", duration),
    "of": ("of {} records", _whole),
    "times": ("{} records", _whole),
}
_WORDS_BY_KIND: Final[Mapping[str, Mapping[str, tuple[str, Callable[[float], str]]]]] = {
    "plateau": {"level": ("level {}", short_number)},
    "straggler": {"seconds": ("{} a step", duration), "ratio": ("{} times the others", short_number)},
    "rank_nan": {
        "finite_ranks": ("finite on {} of the others", _whole),
        "spread": ("on all at step {}", _whole),
    },
    "rank_dead": {"seconds": ("{} without a record", duration)},
    "rank_silent": {"seconds": ("{} without a record", duration)},
    "loss_scale": {"level": ("highest scale {}", short_number), "of": ("of {} norms", _whole)},
    "lr_problem": {"level": ("best loss {}", short_number), "now": ("loss now {}", short_number)},
}

_VALUES: Final[Mapping[str, tuple[str, str]]] = {
    "spike": ("peak", "{} at worst"),
    "divergence": ("now", "now {}"),
    "plateau": ("level", "at {}"),
    "overfit": ("rise_pct", "+{}"),
    "val_spike": ("peak", "{} at worst"),
    "exploding_grad": ("peak", "{} at worst"),
    "vanishing_grad": ("now", "now {}"),
    "throughput_drop": ("lost_pct", "−{}"),  # noqa: RUF001 - a minus sign
    "data_starvation": ("share_pct", "{} waiting"),
    "low_gpu_util": ("mean_pct", "{} busy"),
    "memory_growth": ("grown_mib", "+{}"),
    "stalled": ("seconds", "{}"),
    "hang": ("seconds", "{}"),
    "lr_problem": ("lr", "lr {}"),
    "loss_scale": ("now", "scale {}"),
    "straggler": ("rank", "rank {}"),
}
"""By kind: the number that says most about one occurrence, and the words around it."""


def numbers_of(finding: HasEvidence) -> list[str]:
    """Return the numbers behind a finding, each with its name and unit; unknown names are shown as they are."""
    numbers = finding.evidence
    found: list[str] = []
    if "ranks" in numbers:
        # Several, each under a name of its own.
        found.append(ranks_in_words(numbers))
        numbers = {name: value for name, value in numbers.items() if not is_about_ranks(str(name))}
    for name, value in list(numbers.items())[:_MAX_SHOWN]:
        if name == "first" and "level" in finding.evidence:
            # The level before is what it started with.
            continue
        words, shown = _words(finding.kind, str(name))
        if "first" in finding.evidence and name == "level":
            words = _WORDS["first"][0]
        text = words.format(shown(value) if finite_in(value) is not None else clean(str(value))[:200])
        if found and text.startswith("("):
            found[-1] += f" {text}"
        else:
            found.append(text)
    return found


def value_of(finding: HasEvidence) -> str:
    """Return the number that says most about a finding, such as −31 %; empty if there is none."""  # noqa: RUF002
    if "ranks" in finding.evidence:
        return ranks_in_words(finding.evidence)
    name, words = _VALUES.get(finding.kind, ("", ""))
    value = finite_in(finding.evidence.get(name))
    if value is not None:
        return words.format(_words(finding.kind, name)[1](value))
    return f"{count(finding.count)} records" if finding.count > 1 else ""


def _words(kind: str, name: str) -> tuple[str, Callable[[float], str]]:
    own = _WORDS_BY_KIND.get(kind, {})
    unknown = clean(name.replace("_", " "))[:60].replace("{", "{{").replace("}", "}}")
    return own.get(name) or _WORDS.get(name) or (f"{unknown} {{}}", short_number)
