"""Several messages combined into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from toolkit.mirrors.messages.message import SUMMARY, Message

_MOST_LINES: Final = 20
_MOST_NAMES: Final = 100
_PLURALS: Final = {"finish": "ends", "finding": "critical findings"}


def combine(messages: Sequence[Message], *, more: Counter[str] | None = None) -> Message:
    """Return one message that lists `messages`, and counts how many `more` there were of each occasion."""
    newest = messages[-1]
    counts = _counts(messages, more)
    total = sum(counts.values())
    words = ", ".join(_count(occasion, count) for occasion, count in counts.most_common())
    return Message(
        occasion=SUMMARY,
        title=f"{newest.run_state.run_name}: {total:,} messages ({words})",
        lines=tuple(_listed(messages, total)),
        run_state=newest.run_state,
        link=newest.link,
        time=newest.time,
        urgency=max(message.urgency for message in messages),
        details={"occasions": dict(counts)},
        about=_names(messages),
        message_count=total,
    )


def combine_with_last(
    last: Message, earlier: Sequence[Message], *, more: Counter[str] | None = None
) -> Message:
    """Return the `last` message of a run, with the `earlier` ones that were not sent yet listed in it."""
    if not earlier:
        return last
    counts = _counts(earlier, more)
    total = sum(counts.values())
    return replace(
        last,
        lines=(*last.lines, "Before that:", *_listed(earlier, total)),
        details={**last.details, "occasions": dict(counts)},
        about=_names([last, *earlier]),
        message_count=last.message_count + total,
    )


def _counts(messages: Sequence[Message], more: Counter[str] | None) -> Counter[str]:
    counts = Counter(more or {})
    for message in messages:
        counts.update(message.details["occasions"] if message.occasion == SUMMARY else [message.occasion])
    return counts


def _listed(messages: Sequence[Message], total: int) -> list[str]:
    listed = messages[:_MOST_LINES]
    left_out = total - sum(message.message_count for message in listed)
    return [
        *(f"- {_without_name(message)}" for message in listed),
        *([f"- and {left_out:,} more"] if left_out else []),
    ]


def _names(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(name for message in messages for name in message.about)[:_MOST_NAMES]


def _count(occasion: str, count: int) -> str:
    if count == 1:
        return f"1 {occasion}"
    return f"{count:,} {_PLURALS.get(occasion, f'{occasion}s')}"


def _without_name(message: Message) -> str:
    """Return a message on one line, without the run's name."""
    title = message.title.removeprefix(f"{message.run_state.run_name}: ")
    return f"{title}: {message.lines[0]}" if message.lines else title
