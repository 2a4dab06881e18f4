"""The screens as lines of text: the list of runs, runs with their curves, findings in full, and the help."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len

from toolkit.telemetry.cli.run_list import STATUS_STYLES, age_of, time_left
from toolkit.telemetry.cli.terminal import age_text
from toolkit.telemetry.cli.top.reading import COLOURS, LETTERS, SORTS, Opened, View
from toolkit.telemetry.cli.top.text import Line, Text
from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.importers.formats.record_file import OURS
from toolkit.telemetry.runfolder.status import FINISHED
from toolkit.telemetry.runs.formatting import count
from toolkit.telemetry.runs.listing.run_table import cell
from toolkit.telemetry.runs.store import RunList, labelled

if TYPE_CHECKING:
    from toolkit.telemetry.diagnostics.finding import Finding

KEYS: Final = {
    "up, down, k, j": "the run above or below; of a run, the metric before or after",
    "page up, page down, g, G": "a screen further, the first, the last",
    "enter": "open the run, or all marked runs in one chart",
    "space": "mark the run, to compare it with others",
    "/": "search as `telemetry ls --filter` does; an empty search shows all runs",
    "o, r": "sort by the next column; reverse the order",
    "left, right": "move the cursor over the curves by a column, with shift by ten; escape removes it",
    "l, t": "logarithmic y axis; steps or time on the x axis",
    "f": "findings in full, with causes and advice",
    "s, x": "ask a live run to save, or to stop after its step without saving",
    "escape": "back",
    "?, q": "this help; quit",
}
_MARKS: Final = "On the x axis R marks a resume, N a value that is NaN, and I one that is infinite."
_SEVERITIES: Final = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
_CELL_STYLES: Final = {"alerts": "bold red", "age": "dim", "project": "dim", "format": "dim"}
_NARROWEST: Final = 16


def list_lines(view: View, listed: RunList) -> list[Line]:
    """Return the list of runs: a head, the names of the columns, as many runs as fit, and what could not be read."""
    text, now = view.text, time.time()
    keys = [card.key for card in listed.cards]
    at = keys.index(view.selected) if view.selected in keys else 0
    rows = max(1, view.height - 2 - bool(listed.problems))
    view.top = max(0, min(view.top, at), at - rows + 1)
    shown = [*labelled(listed.cards[view.top : view.top + rows]).values()]
    best = view.primary.metric if view.primary else ""
    names = ("status", "run", "step", "loss", f"best {best}", "left", "alerts", "age", "project", "format")
    table = [
        (
            card.status.name,
            card.name,
            cell(card, "step", now) + (f"/{count(card.max_steps)}" if card.max_steps else ""),
            cell(card, "loss", now),
            cell(card, f"best:{best}", now),
            age_text(time_left(card)),
            cell(card, "alerts", now),
            age_text(age_of(card, now)),
            card.project or "",
            "" if card.format == OURS else card.format,
        )
        for card in shown
    ]
    columns = {name: [row[at] for row in table] for at, name in enumerate(names)}
    widths = {
        name: min(24, max(cell_len(text.one_line(each)) for each in (name[:9], *cells)))
        for name, cells in columns.items()
        if name == "run" or any(cells)
    }
    while (
        room := view.width - 4 - sum(wide + 2 for name, wide in widths.items() if name != "run")
    ) < _NARROWEST and len(widths) > 3:
        widths.popitem()
    widths["run"] = max(1, room)
    found = f"{listed.matching:,} of " if view.search else ""
    notes = [
        f"{found}{listed.total:,} {'run' if listed.total == 1 else 'runs'}",
        ", ".join(f"{number:,} {name}" for name, number in listed.statuses.items()),
        f"by {SORTS[view.sort]}" + ", reversed" * view.is_reversed,
        f"search: {view.search}" if view.search else "",
        # Last, because the end of a long line is cut off.
        ", ".join(listed.places),
    ]
    titles: Line = [("  ", "")]
    lines: list[Line] = [[("* " if card.key in view.marked else "  ", "bold")] for card in shown]
    for name, wide in widths.items():
        right = name in ("step", "loss", f"best {best}", "left", "age")
        titles.append((text.fit(name, wide, right=right) + "  ", "dim"))
        for line, each in zip(lines, columns[name], strict=True):
            style = _CELL_STYLES.get(name) or STATUS_STYLES.get(each, "") * (name == "status")
            line.append((text.fit(each, wide, right=right) + "  ", style))
    if view.selected in keys:
        chosen = lines[at - view.top]
        lines[at - view.top] = [(part, f"reverse {style}".replace("dim", "")) for part, style in chosen]
    if not shown:
        why = (
            "no run fits the search"
            if listed.total
            else "no runs yet: they appear here as soon as there are any"
        )
        lines.append([(text.fit(f"  {why}", view.width), "dim")])
    if listed.problems:
        more = f" (and {len(listed.problems) - 1:,} more: telemetry ls)" if len(listed.problems) > 1 else ""
        lines += [[]] * (rows - len(lines))
        lines.append([(text.fit(listed.problems[0] + more, view.width), "yellow")])
    return [[(text.fit(" · ".join(filter(None, notes)), view.width), "bold")], titles, *lines]


def run_lines(view: View, opened: Opened) -> list[Line]:
    """Return runs with their curves; of a single run also its GPUs and its findings."""
    from toolkit.telemetry.cli.top.plot import Plot

    text, width = view.text, view.width
    few, most, heads = max(1, view.height // 12), max(2, view.height // 6), max(1, view.height // 3)
    lines = _heads(view, opened)
    lines[heads:] = [[(f"and {len(lines) - heads} more runs", "dim")]] * (len(lines) > heads)
    below = [[(text.fit(gpu, width), "")] for gpu in opened.gpus[:few]]
    below += [[(f"and {len(opened.gpus) - few} more GPUs", "dim")]] * (len(opened.gpus) > few)
    below += [_finding(text, alert, width) for alert in opened.alerts[:most]]
    below += [[(f"and {len(opened.alerts) - most} more: f", "dim")]] * (len(opened.alerts) > most)
    if not opened.alerts and len(opened.cards) == 1:
        below.append([("No findings." if opened.is_whole else "Reading and examining ...", "dim")])
    below += [[(text.fit(note, width), "bold")] for note in opened.notes[-2:]]
    drawn = max(1, len(opened.charts))
    room = max(4 * drawn, view.height - len(lines) - len(below))
    plot = Plot(view=view, span=opened.span)
    for at, (title, curves) in enumerate(opened.charts):
        lines += plot.draw(title, curves, room // drawn + (at < room % drawn))
    if not opened.charts:
        lines.append([("No metrics." if opened.is_whole else "", "dim")])
    return [*lines, *below]


def finding_lines(view: View, opened: Opened) -> list[Line]:
    """Return all findings with their causes and advice."""
    text, lines = view.text, _heads(view, opened)
    for alert in opened.alerts:
        lines += [[], _finding(text, alert, view.width)[:1]]
        causes, advice = (
            [f"Cause: {each}" for each in alert.causes],
            [f"Try: {each}" for each in alert.advice],
        )
        for each in (alert.message, *causes, *advice):
            lines += [[(f"  {line}", "")] for line in text.wrap(each, view.width - 2)]
    return lines


def help_lines(view: View) -> list[Line]:
    """Return what the keys do."""
    lines: list[Line] = []
    for keys, what in KEYS.items():
        for at, line in enumerate(view.text.wrap(what, max(20, view.width - 26))):
            lines.append([(view.text.fit("" if at else keys, 25) + " ", "bold"), (line, "")])
    return [*lines, [], *([(line, "")] for line in view.text.wrap(_MARKS, view.width))]


def _heads(view: View, opened: Opened) -> list[Line]:
    """Return a line about each run: its name, in the colour of its curve, how far it is, and when it ends."""
    lines = []
    for at, card in enumerate(opened.cards):
        is_one = len(opened.cards) == 1
        step = "" if card.step is None else f"step {count(card.step)}"
        if step and card.max_steps and card.progress is not None:
            step = f"step {count(card.steps_done)} / {count(card.max_steps)} ({card.progress:.0%})"
        loss = "" if card.loss is None else f"loss {cell(card, 'loss', 0.0)}"
        why = "" if card.live or card.status.name == FINISHED else card.status.why
        parts = [card.status.name, step, loss, opened.ends, card.logged_by, card.problem, why]
        name = view.text.one_line(card.name if is_one else f"{LETTERS[at % len(LETTERS)]} {card.name}")
        name = view.text.fit(name, min(cell_len(name), view.width // 2))
        rest = view.text.fit(f"  {' · '.join(filter(None, parts))}", view.width - cell_len(name))
        style = "bold" if is_one else COLOURS[at % len(COLOURS)]
        lines.append([(name, style), (rest, STATUS_STYLES.get(card.status.name, ""))])
    return lines


def _finding(text: Text, alert: Finding, width: int) -> Line:
    where = (
        "" if alert.start_step is None else f" {'since' if alert.is_open else 'at'} step {alert.start_step:,}"
    )
    title = text.fit(f"{alert.severity}: {title_of(alert)}{where}", width).rstrip()
    style = _SEVERITIES.get(alert.severity, "") if alert.is_open else "dim"
    message = f"  {alert.message}" if alert.is_open else f"  resolved; {alert.message}"
    return [(title, style), (text.fit(message, width - cell_len(title)), "" if alert.is_open else "dim")]
