"""The screens as lines of text: the list of runs, runs with their curves, findings in full, and the help."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len

from toolkit.cli.run_list import STATUS_STYLES, age_of, time_left
from toolkit.cli.terminal import age_text
from toolkit.cli.top.reading import COLOURS
from toolkit.cli.top.text import Line, Text
from toolkit.cli.top.view import SORTS, Opened, View
from toolkit.importers.formats.record_file import OURS
from toolkit.runfolder.status import FINISHED
from toolkit.runs.formatting import count
from toolkit.runs.listing.run_table import cell
from toolkit.runs.store import labelled

if TYPE_CHECKING:
    from toolkit.runs.findings.alerts import Alert

KEYS: Final = {
    "up, down, k, j": "the run above or below; of a run, the metric before or behind",
    "page up, page down, g, G": "a screen further, the first, the last",
    "enter": "open the run, or all marked runs in one chart",
    "space": "mark the run, to compare it with others",
    "/": "search as `telemetry ls --filter` does; an empty search shows all runs",
    "o, r": "sort by the next column; reverse the order",
    "left, right": "move the cursor over the curves by a column, with shift by ten; escape removes it",
    "l, t": "logarithmic y axis; steps or time on the x axis",
    "f": "findings and forecasts in full",
    "s, x": "ask a live run to save, or to stop after its step without saving",
    "escape": "back",
    "?, q": "this help; quit",
}
_MARKS: Final = "On the x axis R marks a resume, N a value that is NaN, and I one that is infinite."
_SEVERITIES: Final = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
_NARROWEST: Final = 16


def list_lines(view: View) -> list[Line]:
    """Return the list of runs: a head, the names of the columns, and as many runs as fit."""
    text, listed, now = view.text, view.listed, time.time()
    if listed is None:
        return []
    keys = [card.key for card in listed.cards]
    at = keys.index(view.selected) if view.selected in keys else 0
    view.top = max(0, min(view.top, at), at - view.height + 3)
    shown = [*labelled(listed.cards[view.top : view.top + view.height - 2]).values()]
    best = view.primary.metric if view.primary else ""
    columns: dict[str, list[tuple[str, str]]] = {
        "status": [(card.status.name, STATUS_STYLES.get(card.status.name, "")) for card in shown],
        "run": [(card.name, "") for card in shown],
        "step": [
            (cell(card, "step", now) + (f"/{count(card.max_steps)}" if card.max_steps else ""), "")
            for card in shown
        ],
        "loss": [(cell(card, "loss", now), "") for card in shown],
        f"best {best}": [(cell(card, f"best:{best}", now), "") for card in shown],
        "left": [(age_text(time_left(card)), "") for card in shown],
        "alerts": [
            (cell(card, "alerts", now), "bold red" if card.open_findings[0] else "yellow") for card in shown
        ],
        "age": [(age_text(age_of(card, now)), "dim") for card in shown],
        "project": [(card.project or "", "dim") for card in shown],
        "format": [("" if card.format == OURS else card.format, "dim") for card in shown],
    }
    columns = {
        name: cells for name, cells in columns.items() if name == "run" or any(each for each, _ in cells)
    }
    widths = {
        name: min(24, max(cell_len(text.one_line(each)) for each in (name[:9], *(each for each, _ in cells))))
        for name, cells in columns.items()
    }
    while (
        room := view.width - 4 - sum(wide + 2 for name, wide in widths.items() if name != "run")
    ) < _NARROWEST and len(widths) > 3:
        widths.popitem()
    widths["run"] = max(1, room)
    counts = ", ".join(f"{number:,} {name}" for name, number in listed.statuses.items())
    found = f"{listed.matching:,} of " if view.search else ""
    notes = [
        f"{', '.join(listed.places)}: {found}{listed.total:,} runs",
        counts,
        f"by {SORTS[view.sort]}" + ", reversed" * view.is_reversed,
    ]
    notes += [f"search: {view.search}"] if view.search else []
    lines: list[Line] = [[(text.fit(" · ".join(filter(None, notes)), view.width), "bold")], [("  ", "")]]
    rows: list[Line] = [[("* " if card.key in view.marked else "  ", "bold")] for card in shown]
    for name, wide in widths.items():
        right = name in ("step", "loss", "left", "age", f"best {best}")
        for line, (each, style) in zip((lines[1], *rows), ((name, "dim"), *columns[name]), strict=True):
            line.append((text.fit(each, wide, right=right) + "  ", style))
    if not shown:
        why = (
            "no run fits the search"
            if listed.total
            else "no runs yet: they appear here as soon as there are any"
        )
        rows.append([(text.fit(f"  {why}", view.width), "dim")])
    elif view.selected in keys:
        rows[at - view.top] = [
            (part, f"reverse {style}".replace("dim", "")) for part, style in rows[at - view.top]
        ]
    return [*lines, *rows]


def run_lines(view: View, opened: Opened) -> list[Line]:
    """Return runs with their curves; of a single run also its GPUs and its findings."""
    from toolkit.cli.top.plot import Plot

    text, width = view.text, view.width
    lines = _heads(view, opened)
    few, most = max(1, view.height // 12), max(2, view.height // 6)
    below = [[(text.fit(f"{words}  {text.spark(load)}", width), "")] for words, load in opened.gpus[:few]]
    below += [[(f"and {len(opened.gpus) - few} more GPUs", "dim")]] * (len(opened.gpus) > few)
    below += [_finding(text, alert, width) for alert in opened.alerts[:most]]
    below += [[(f"and {len(opened.alerts) - most} more: f", "dim")]] * (len(opened.alerts) > most)
    if not opened.alerts and len(opened.cards) == 1:
        below.append([("No findings." if opened.is_whole else "Reading and examining ...", "dim")])
    below += [[(text.fit(answer, width), "bold")] for answer in opened.answers[-2:]]
    across, down = view.grid
    down = max(1, min(down, -(-len(opened.charts) // across)))
    room = max(4 * down, view.height - len(lines) - len(below))
    for row in range(down):
        plot = Plot(
            text=text,
            width=width // across - (across > 1),
            height=room // down + (row < room % down),
            span=opened.span,
            axis=view.axis,
            log=view.log,
            cursor=view.cursor,
            letters=view.no_color and len(opened.cards) > 1,
        )
        drawn = [
            plot.draw(title, curves) for title, curves in opened.charts[row * across : (row + 1) * across]
        ]
        lines += [
            [part for line in beside for part in (*line, (" " * (across > 1), ""))]
            for beside in zip(*drawn, strict=True)
        ]
    return [*lines, *below]


def full_lines(view: View, opened: Opened) -> list[Line]:
    """Return all findings with their causes and advice, and the forecasts."""
    text, lines = view.text, _heads(view, opened)
    for what, words, *why in opened.forecasts:
        because = "".join(f" ({each})" for each in why if each)
        lines += [[(line, "")] for line in text.wrap(f"{what}: {words}{because}", view.width)]
    for alert in opened.alerts:
        lines += [[], _finding(text, alert, view.width)[:1]]
        more = [
            alert.message,
            *(f"Cause: {each}" for each in alert.causes),
            *(f"Try: {each}" for each in alert.advice),
        ]
        lines += [[(f"  {line}", "")] for each in more for line in text.wrap(each, view.width - 2)]
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
        parts = [card.status.name]
        if card.step is not None:
            of = (
                f" / {count(card.max_steps)} ({card.progress:.0%})"
                if card.max_steps and card.progress is not None
                else ""
            )
            parts.append(f"step {count(card.steps_done if of else card.step)}{of}")
        parts += [f"loss {cell(card, 'loss', 0.0)}"] if card.loss is not None else []
        parts += [part for part in (opened.ends, card.logged_by or "", card.problem or "") if part]
        parts += [card.status.why] if not card.live and card.status.name != FINISHED else []
        several = len(opened.cards) > 1
        name = view.text.one_line(f"{'abcdefgh'[at % 8]} " * several + card.name)
        name = view.text.fit(name, min(cell_len(name), view.width // 2))
        rest = view.text.fit(f"  {' · '.join(parts)}", view.width - cell_len(name))
        style = COLOURS[at % len(COLOURS)] if several else "bold"
        lines.append([(name, style), (rest, STATUS_STYLES.get(card.status.name, ""))])
    return lines


def _finding(text: Text, alert: Alert, width: int) -> Line:
    where = "" if alert.step is None else f" {'since' if alert.is_open else 'at'} step {alert.step:,}"
    title = text.fit(f"{alert.severity}: {alert.title}{where}", width).rstrip()
    style = _SEVERITIES.get(alert.severity, "") if alert.is_open else "dim"
    message = f"  {alert.message}" if alert.is_open else f"  resolved; {alert.message}"
    return [(title, style), (text.fit(message, width - cell_len(title)), "" if alert.is_open else "dim")]
