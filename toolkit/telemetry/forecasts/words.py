"""The forecasts of a run in words, for the command and for the pages."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from toolkit.telemetry.forecasts.curve import Forecast, NoForecast
from toolkit.telemetry.forecasts.run import RunForecast, last_step
from toolkit.telemetry.runs.formatting import clock, count, short_number
from toolkit.telemetry.runs.store import NO_END, RunCard

_RARE: Final = 0.02


class Said(NamedTuple):
    """One forecast: what it is of, what it says, and what that rests on or why there is none."""

    what: str
    text: str
    why: str = ""


def head_of(card: RunCard) -> str:
    """Return what the forecasts of a run are called: of one that has ended, they say where it would have ended."""
    may_run, last = card.live or card.status.name == NO_END, last_step(card) or 0
    is_short = not may_run and (card.step or 0) < last
    return f"Forecast, had it run to step {count(last)}" if is_short else "Forecast"


def said_of(found: RunForecast, now: float) -> list[Said]:
    """Return everything that can be said, and why a loss cannot be forecast."""
    lines = [_loss("Final loss", found.train)]
    if found.val is not None:
        lines.append(_loss("Final validation loss", found.val))
    if found.ends is not None:
        lines.append(Said("Ends", between(found.ends.low, found.ends.high, now)))
    for limit in found.limits:
        near = "" if limit.step is None else f", near step {count(round(limit.step))}"
        is_sure = found.ends is None or limit.when.high < found.ends.low
        words = ("comes first", "may come first") if limit.what == "time limit" else ("full", "may be full")
        what = f"{limit.what[:1].upper()}{limit.what[1:]} {words[not is_sure]}"
        lines.append(Said(what, between(limit.when.low, limit.when.high, now) + near))
    if found.passing is not None:
        best = found.passing
        # How often rarer things come was not measured.
        bound = "less than " if best.chance < _RARE else "more than " if best.chance > 1 - _RARE else ""
        chance = f"{bound}{100 * min(max(best.chance, _RARE), 1 - _RARE):.0f} % likely"
        rests = f"the best of the other runs has {best.metric} {short_number(best.value)}"
        if best.is_ahead:
            lines.append(Said(f"Stays ahead of {best.name}", chance, rests))
        else:
            where = "" if best.step is None else f"near step {count(round(best.step))}, "
            lines.append(Said(f"Passes {best.name}", where + chance, rests))
    return lines


def value_of(one: Forecast) -> str:
    """Return a forecast as 0.41 (0.38 to 0.45), with as many digits as tell its ends apart."""
    ends = one.low, one.middle, one.high
    wide, most = one.high - one.low, max(map(abs, ends))
    digits = 3 if not wide > 0 else min(max(3, 2 + math.ceil(math.log10(most / wide))), 15)
    low, middle, high = (f"{value:.{digits}g}" for value in ends)
    return f"{middle} ({low} to {high})"


def between(low: float, high: float, now: float) -> str:
    """Return an interval of wall times, to the minute."""
    first, last = clock(low, now=now)[:-3], clock(high, now=low)[:-3]
    return first if low == high or first.endswith(last) else f"{first} to {last}"


def _loss(what: str, one: Forecast | NoForecast) -> Said:
    if isinstance(one, NoForecast):
        return Said(what, "cannot be forecast", one.why)
    return Said(what, f"{value_of(one)[:-1]}, 90 %)", one.basis)
