"""One message, and several combined into one."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from toolkit.telemetry.core.formatting import cut, duration, short_number
from toolkit.telemetry.runfolder.records import steps_done

SUMMARY: Final = "summary"
"""The occasion of a message that combines several others."""
TEST: Final = "test"
"""The occasion of a message sent by `telemetry setup message`."""
_MOST_LINES: Final = 20
_MOST_NAMES: Final = 100


@dataclass(slots=True, kw_only=True)
class RunState:
    """State and progress of a run."""

    run_name: str = ""
    run_id: str = ""
    project: str = ""
    description: str = ""
    """As the script gives it: `log_start(description=…)`, or W&B's `notes`."""
    session: int = 1
    status: str = "running"
    step: int | None = None
    max_steps: int | None = None
    from_zero: bool = False
    """Whether its first step is 0."""
    train_loss: float | str | None = None
    """A text, such as "NaN", if it is not a finite number."""
    lr: float | None = None
    eta_s: float | None = None
    elapsed_s: float | None = None

    def as_text(self) -> str:
        """Return everything that is known, on one line."""
        words = [self.status]
        done = self.steps_done
        if done is not None and self.max_steps:
            share = min(1.0, done / self.max_steps)
            words.append(f"step {done:,} of {self.max_steps:,} ({share:.0%})")
        elif self.step is not None:
            words.append(f"step {self.step:,}")
        loss = self.train_loss if isinstance(self.train_loss, str) else short_number(self.train_loss)
        if loss is not None:
            words.append(f"loss {loss}")
        if (lr := short_number(self.lr)) is not None:
            words.append(f"LR {lr}")
        if self.eta_s is not None:
            words.append(f"ETA {duration(self.eta_s)}")
        elif self.elapsed_s is not None:
            words.append(f"after {duration(self.elapsed_s)}")
        return " · ".join(words)

    @property
    def steps_done(self) -> int | None:
        """How many steps are done; None before the first."""
        return None if self.step is None else steps_done(self.step, from_zero=self.from_zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message, already without secrets; a service only formats it."""

    occasion: str
    title: str
    lines: tuple[str, ...] = ()
    run_state: RunState = field(default_factory=RunState)
    link: str | None = None
    time: float = 0.0
    urgency: int = 3
    """1 to 5, like the priority of a notification on a phone."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further fields for programs."""
    about: tuple[str, ...] = ()
    """Ids of the events it reports, so that each is delivered once."""
    message_count: int = 1
    """How many messages it combines."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The same in every retry."""

    def body(self, longest: int) -> str:
        """Return the text between title and link, truncated to `longest` characters."""
        state = self.run_state
        project = f"project {state.project}" if state.project else ""
        about = " · ".join(filter(None, (project, state.description)))
        return cut("\n".join(filter(None, (*self.lines, state.as_text(), about))), longest)


def combine(messages: Sequence[Message]) -> Message:
    """Return one message that lists `messages`; that of the end of a run keeps its title and lists the others."""
    *earlier, newest = messages
    if not earlier:
        return newest
    is_end = newest.occasion in ("finish", "failure")
    others = earlier if is_end else messages
    total, listed = sum(message.message_count for message in others), others[:_MOST_LINES]
    lines = [f"- {_on_one_line(message)}" for message in listed]
    if left_out := total - sum(message.message_count for message in listed):
        lines.append(f"- and {left_out:,} more")
    one = replace(
        newest,
        urgency=max(message.urgency for message in messages),
        about=tuple(name for message in messages for name in message.about)[:_MOST_NAMES],
        message_count=total + is_end,
    )
    if is_end:
        return replace(one, lines=(*newest.lines, "Before that:", *lines))
    title = f"{newest.run_state.run_name}: {total:,} messages"
    return replace(one, occasion=SUMMARY, title=title, lines=tuple(lines), details={})


def _on_one_line(message: Message) -> str:
    """Return title and first line of a message, without the run's name."""
    title = message.title.removeprefix(f"{message.run_state.run_name}: ")
    return f"{title}: {message.lines[0]}" if message.lines else title
