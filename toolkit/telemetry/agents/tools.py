"""What an agent can ask about runs: each function is a tool, answered by the code that the commands use.

Its docstring and the annotations of its arguments are what a client sees.
"""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from toolkit.telemetry.agents.answer import Answer, AskError, Cut
from toolkit.telemetry.agents.runs import (
    WAIT_S,
    Placed,
    Runs,
    cut_of,
    ends_of,
    last_of,
    numbered,
    place,
    thinned,
)
from toolkit.telemetry.answers.resume import answer_resumes
from toolkit.telemetry.answers.verdict import verdict_on
from toolkit.telemetry.answers.why import why as why_differ
from toolkit.telemetry.diagnostics.diagnosis import NoRecordsError
from toolkit.telemetry.diagnostics.finding import SEVERITIES, Finding
from toolkit.telemetry.diagnostics.history import diagnose
from toolkit.telemetry.forecasts.curve import Forecast
from toolkit.telemetry.forecasts.run import forecast_run
from toolkit.telemetry.forecasts.words import said_of
from toolkit.telemetry.formulas.formula import is_formula
from toolkit.telemetry.importers.source import WORDS
from toolkit.telemetry.runfolder.evidence.output_log import OutputLine, OutputLog
from toolkit.telemetry.runfolder.metrics import guess_primary_metric, metric_direction
from toolkit.telemetry.runfolder.records import FINDING
from toolkit.telemetry.runs.settings import differing_settings
from toolkit.telemetry.runs.store import RunCard, RunQuery
from toolkit.telemetry.runs.tables.query import QueryError
from toolkit.telemetry.runs.tables.query import query as run_query

Run = Annotated[str, Field(description="key or name of a run, from `list`")]
Glob = Annotated[str, Field(description="only metrics whose names match, such as 'val*'")]
Skip = Annotated[int, Field(ge=0, description="how many rows to skip")]
Names = Annotated[list[str], Field(max_length=20)]
_MOST_METRICS = 200
_MOST_ROWS = 1_000
_TABLES = (
    "DuckDB's SQL over runs, settings, steps, evals, system, spans, findings, requests (`describe TABLE`); steps and "
    "evals: run, session, step, superseded, file, byte_offset, loss, lr and a column for each metric"
)
_NOTHING = "Nothing is wrong in the records."
_AGAIN = "ask again with offset, or for fewer by name"

Rows = list[tuple[list[Any], Placed]]


def list_runs(
    known: Runs,
    *,
    query: Annotated[
        str, Field(description="as `telemetry ls --filter`, such as 'lr>1e-4 status:failed'")
    ] = "",
    sort: Annotated[str, Field(description="age, name, loss, best:METRIC or a setting; - reverses")] = "age",
    metrics: Annotated[
        Names, Field(description="a metric for its last value, best:METRIC for its best one")
    ] = [],  # noqa: B006
    settings: Annotated[Names, Field(description="settings to show, such as learning_rate")] = [],  # noqa: B006
    limit: Annotated[int, Field(ge=1, le=500)] = 20,
    offset: Skip = 0,
) -> Answer:
    """List runs: status, and the last loss or the metrics and settings asked for, with their sources."""
    found = known.listed(RunQuery(text=query, sort=sort))
    shown = found.cards[offset : offset + limit]
    rows: Rows = []
    for card in shown:
        wanted = metrics if metrics or settings else [card.loss_metric or ""]
        own = {name: _asked(known, card, name) for name in wanted}
        for name in settings:
            if name in card.config:
                at = known.settings_place(card)
                own[name] = card.config[name], at.get("session"), None, at.get("offset"), False
        name = "" if card.name == card.key else card.name
        head = [card.key, name, card.format, card.status.name]
        rows += [
            ([*head, name], placed or (None, None, card.step, None, False)) for name, placed in own.items()
        ]
    return Answer(
        facts={
            "runs": numbered(rows, "run", "name", "format", "status", "metric"),
            "files": {card.key: known.files(card) for card in shown},
            "total": found.matching,
            "notes": [*found.problems, *cut_of(shown)],
        },
        cuts=[Cut("notes"), Cut("files"), Cut("runs", _AGAIN)],
        left={"runs": max(0, found.matching - offset - len(shown))},
    )


def describe(known: Runs, *, run: Run, metrics: Glob = "", offset: Skip = 0) -> Answer:
    """One run: status, settings, sessions, notes, requests, and last and best value of each metric."""
    card = known.card(run)
    names = _matching(known, [card], metrics)
    rows: Rows = []
    for name in names[offset : offset + _MOST_METRICS]:
        points, _ = known.points(card, name)
        last, best = place(points, last_of(points)), known.best(card, name)
        rows.append(([name, "last", len(points.value)], last))
        rows += [([name, "best", len(points.value)], best)] if best not in (None, last) else []
    sessions = [[one.session, one.first_step] for one in known.store.sessions(card.key)]
    return Answer(
        facts={
            "run": card.key,
            "name": None if card.name == card.key else card.name,
            **{name: getattr(card, name) for name in ("project", "tags", "format")},
            "status": card.status.name,
            "why": card.status.why,
            "files": known.files(card),
            "planned_steps": card.max_steps,
            "metrics": numbered(rows, "metric", "which", "points"),
            "settings_of": known.settings_place(card),
            "settings": {} if metrics else dict(card.config),
            "sessions": {"columns": ["session", "first_step"], "rows": sessions} if sessions[1:] else None,
            "note": known.store.meta(card.key).labels.notes,
            "requests": known.requests(card)[:3],
            "problem": card.problem,
        },
        cuts=[
            *map(Cut, ("sessions", "requests", "tags", "settings")),
            Cut("metrics", f"{_AGAIN}, in metrics", least=4),
        ],
        left={"metrics": max(0, len(names) - offset - _MOST_METRICS)},
    )


def curve(
    known: Runs,
    *,
    run: Run,
    metric: Annotated[str, Field(description="its name, or a formula such as '= val_loss - train_loss'")],
    n: Annotated[int, Field(ge=1, le=2_000, description="how many points at most")] = 40,
    first_step: Annotated[int, Field(ge=0)] = 0,
    last_step: Annotated[int | None, Field(ge=0)] = None,
) -> Answer:
    """A metric over the steps, thinned to n points; extremes and NaN are kept. Also its mean and counts."""
    card = known.card(run)
    points, files = known.points(card, metric)
    last = np.inf if last_step is None else last_step
    inside = np.flatnonzero(points.is_current & (points.step >= first_step) & (points.step <= last))
    if not len(inside):
        have = [place(points, at)[2] for at in (0, -1)]
        raise AskError("No point is in these steps.", run=card.key, metric=metric, steps_of_metric=have)
    values = points.value[inside]
    finite = values[np.isfinite(values)]
    picked = [place(points, int(inside[at])) for at in thinned(values, n)]
    table = numbered(([], placed) for placed in picked)

    def fewer(rows: Sequence[Any], count: int) -> Sequence[Any]:
        at = table["columns"].index("value")
        return [rows[number] for number in thinned([WORDS.get(row[at], row[at]) for row in rows], count)]

    return Answer(
        facts={
            "run": card.key,
            "metric": metric,
            "files": [str(path) for path in files],
            "points": table,
            "of_points": len(inside),
            "superseded": int(len(points.value) - points.is_current.sum()),
            "not_finite": len(values) - len(finite),
            "mean": {"value": float(finite.mean()), "of": ends_of(points, inside)} if len(finite) else None,
            "by": "a formula over the record at each offset" if is_formula(metric) else None,
        },
        cuts=[Cut("points", "ask with a larger n and max_tokens, or for fewer steps", 6, fewer)],
        left={"points": len(inside) - len(picked)},
    )


def compare(known: Runs, *, runs: Annotated[Names, Field(min_length=2)], metrics: Glob = "") -> Answer:
    """Runs side by side: last and best values, and the settings that differ (in the order of settings_of)."""
    cards = [known.card(name) for name in runs]
    rows: Rows = []
    for name in _matching(known, cards, metrics)[:_MOST_METRICS]:
        for card in cards:
            for which, placed in (("last", known.last(card, name)), ("best", known.best(card, name))):
                rows += [([name, card.key, which], placed)] if placed is not None else []
    different = differing_settings([card.config for card in cards])
    return Answer(
        facts={
            "metrics": numbered(rows, "metric", "run", "which"),
            "settings": {name: [card.config.get(name) for card in cards] for name in different},
            "settings_of": [{"run": card.key, **known.settings_place(card)} for card in cards],
            "files": {card.key: known.files(card) for card in cards},
        },
        cuts=[Cut("settings"), Cut("metrics", "ask with metrics='…'", least=8), Cut("settings_of")],
    )


def doctor(known: Runs, *, run: Run, min_severity: Literal["info", "warning", "critical"] = "info") -> Answer:
    """How a run ended, what is wrong with it, how sure that is, likely causes and what to try."""
    card = known.card(run)
    try:
        found = diagnose(known.source(card), name=card.name).only(min_severity)
    except (OSError, NoRecordsError) as error:
        raise AskError("The run cannot be read.", run=card.key, problem=str(error)) from error
    ending = found.ending
    findings = sorted(found.findings, key=lambda one: (-SEVERITIES.index(one.severity), one.start_step or 0))
    is_bad = found.is_bad or findings or found.errors
    written = known.store.placed_events(card.key, (FINDING,), limit=500)[::-1]
    recorded = {record.get("id"): at for at, record in written}
    return Answer(
        facts={
            "run": card.key,
            "status": card.status.name if ending is None else ending.status,
            "ending": None if ending is None else ending.why,
            "error": None if ending is None or ending.error is None else _error(ending.error),
            "findings": [_finding(known, card, one, recorded.get(one.id)) for one in findings],
            "errors": [_error(error) for error in found.errors],
            "records": found.records,
            "bad_lines": found.bad_lines,
            "notes": found.notes,
            "files": known.files(card),
        },
        words=f"{found.left_out:,} are less severe." if found.left_out else "" if is_bad else _NOTHING,
        cuts=[
            Cut("notes"),
            Cut("errors"),
            Cut("findings", "ask with a larger max_tokens or min_severity", 1),
        ],
    )


def resume(known: Runs, *, run: Run) -> Answer:
    """Did each resume of a run continue the same training? The newest resume first."""
    card = known.card(run)
    said = [answer.as_json() for answer in answer_resumes(known.evidence(card))]
    names = ("session", "step", "answer", "sure", "sentence", "cause", "needed")
    compared = [[one["session"], *row.values()] for one in said for row in one["evidence"]]
    columns = ["session", *next((row for one in said for row in one["evidence"]), ())]
    return Answer(
        facts={
            "run": card.key,
            "resumes": [{name: one[name] for name in names if one[name]} for one in said],
            "compared": {"columns": columns, "rows": compared} if compared else None,
            "from": [known.inputs(card, card.loss_metric)],
            "files": known.files(card),
        },
        words="" if said else "The run has one session: it was never resumed.",
        cuts=[Cut("compared"), Cut("resumes", least=1)],
    )


def why(known: Runs, *, a: Run, b: Run) -> Answer:
    """Why do two runs differ: since which step, and the causes, the most likely first."""
    cards = [known.card(a), known.card(b)]
    found = why_differ(known.evidence(cards[0]), known.evidence(cards[1]))
    said = found.as_json()
    metric = found.departure.metric or cards[0].loss_metric
    rows: Rows = []
    for card in cards:
        points = known.store.points(card.key, metric or "")
        if points is not None:
            there = np.flatnonzero(points[0].is_current & (points[0].step == found.step))
            rows += [([card.key, metric], place(points[0], int(at))) for at in there[:1]]
    first = ("answer", "sentence", "sure", "step", "departure", "causes")
    rest = ("evidence", "needed", "without_effect", "code")
    return Answer(
        facts={
            **{name: said[name] for name in first},
            "at_that_step": numbered(rows, "run", "metric"),
            "from": [known.inputs(card, metric) for card in cards],
            "files": {card.key: known.files(card) for card in cards},
            **{name: said[name] for name in rest},
        },
        cuts=[Cut(name) for name in (*rest[::-1], "causes")],
    )


def verdict(
    known: Runs,
    *,
    new: Annotated[Names, Field(min_length=1, description="the new run, or its repeats")],
    against: Annotated[Names, Field(min_length=1, description="the best one so far, likewise")],
    metric: Annotated[str, Field(description="what to compare; '' chooses a validation loss")] = "",
    goal: Annotated[Literal["", "min", "max"], Field(description="what is better; '' goes by the name")] = "",
) -> Answer:
    """Is a run really better than another, or is it the seed: better, worse, not better or not decided."""
    lists = [[known.card(name) for name in names] for names in (new, against)]
    shared = set.intersection(*({name for card in cards for name in card.evaluations} for cards in lists))
    chosen = metric or guess_primary_metric([sorted(shared)]) or ""
    better = goal or metric_direction(chosen)
    if not better:
        raise AskError("Say which metric, and in goal whether min or max is better.", metrics=sorted(shared))
    folders = {card.path.parent for cards in lists for card in cards if card.path is not None}
    in_their_folders = [
        card for card in known.listed(RunQuery()).cards if card.path and card.path.parent in folders
    ]

    def last_of(card: RunCard) -> float | None:
        last = known.last(card, chosen)
        return None if last is None else last[0]

    found = verdict_on(
        lists,
        in_their_folders,
        metric=chosen,
        goal=better,
        last_of=last_of,
        are_single=[len(names) == 1 for names in (new, against)],
        places=["new", "against"],
    )
    if isinstance(found, str):
        raise AskError("There is no verdict.", problem=found)
    said = found.as_json()
    rows: Rows = []
    for row in said["runs"]:
        for card in (card for card in in_their_folders if card.place == row["place"]):
            last = known.last(card, chosen)
            if last is not None and last[0] == row["value"] and not any(card.key in head for head, _ in rows):
                rows.append(([row["group"], card.key, row["counted"], row["why"]], last))
    names = "answer sentence sure needed metric goal improvement improvement_needed noise p".split()
    return Answer(
        facts={
            **{name: said.get(name) for name in names},
            "rests_on": said["rests_on"],
            "from": numbered(rows, "group", "run", "counted", "not_counted_because"),
            "files": {head[1]: known.files(known.store.card(head[1])) for head, _ in rows},
        },
        cuts=[Cut("rests_on"), Cut("from", least=8)],
    )


def forecast(
    known: Runs,
    *,
    run: Run,
    metric: Annotated[str, Field(description="another loss; '' for the usual ones")] = "",
) -> Answer:
    """Where the loss of a run will end (low to high holds in 9 of 10 runs), when it ends, and what runs out before."""
    card = known.card(run)
    if metric:
        known.points(card, metric)
    known.store.examine(card.key, wait_s=WAIT_S)
    found = forecast_run(known.store, card.key, metric=metric or None)
    names = ("metric", "low", "middle", "high", "at_step", "from_step", "records", "basis")
    losses = [one for one in (found.train, found.val) if one is not None]
    used: list[str | None] = [one.metric for one in found.losses]
    return Answer(
        facts={
            "run": card.key,
            "losses": [
                {name: getattr(one, name) for name in names} for one in losses if isinstance(one, Forecast)
            ],
            "cannot_because": [one.why for one in losses if not isinstance(one, Forecast)],
            "limits": [asdict(limit) for limit in found.limits],
            "said": [" ".join(filter(None, line)) for line in said_of(found, time.time())] if used else [],
            "from": [known.inputs(card, name) for name in used or [metric or card.loss_metric]],
            "files": known.files(card),
        },
        cuts=[Cut("said"), Cut("limits")],
    )


def logs(
    known: Runs,
    *,
    run: Run,
    n: Annotated[int, Field(ge=1, le=2_000, description="how many lines at most")] = 50,
    grep: Annotated[
        str, Field(description="only lines with this regular expression (RE2), in any case")
    ] = "",
    rank: Annotated[int, Field(ge=0)] = 0,
    before: Annotated[int | None, Field(ge=0, description="only lines before this number")] = None,
) -> Answer:
    """What a run printed: the last n lines, each with its number and byte offset."""
    card = known.card(run)
    source = known.source(card)
    if not isinstance(source, Path):
        raise AskError("Only runs of telemetry's own logger keep what they print.", run=card.key)
    with OutputLog(source, rank) as log:
        if not log.exists:
            raise AskError("There is no output.", run=card.key, problem=log.problem)
        lines = [*islice(_with(grep, log.newest_first(before)), n + 1)]
        is_more, lines = len(lines) > n, lines[:n][::-1]
        rows = [[one.number, log.offset_of(one.number), one.session, one.stream, one.text] for one in lines]
        columns = ["line", "offset", "session", "stream", "text"]
        table, path, total = {"columns": columns, "rows": rows}, str(log.path), log.count
    return Answer(
        facts={"run": card.key, "files": [path], "lines": table, "total": total},
        cuts=[
            Cut("lines", "ask with before=LINE, or grep", take=lambda rows, count: rows[len(rows) - count :])
        ],
        words="Earlier lines have it, too." if is_more and grep else "",
        left={"lines": lines[0].number if lines and not grep else 0},
    )


def sql(known: Runs, *, query: Annotated[str, Field(description=_TABLES)]) -> Answer:
    """One SELECT over all runs. Its numbers are derived by the query, unless run, file and byte_offset are selected."""
    try:
        found = run_query(query, known.tables())
    except QueryError as error:
        raise AskError("The query has no answer.", asked=query, problem=str(error)) from error
    names, rows = found.column_names, found.slice(0, _MOST_ROWS).to_pylist()
    cards = known.tables().runs() if {"run", "byte_offset"} <= {*names} else {}
    return Answer(
        facts={
            "rows": {"columns": names, "rows": [[row[name] for name in names] for row in rows]},
            "total": found.num_rows,
            "folders": {row["run"]: str(cards[row["run"]].path) for row in rows if row.get("run") in cards},
        },
        cuts=[Cut("folders"), Cut("rows", "ask for fewer rows or columns, or with a larger max_tokens")],
        left={"rows": found.num_rows - len(rows)},
    )


# ------------------------------------------------------------ parts


def _matching(known: Runs, cards: Sequence[RunCard], pattern: str) -> list[str]:
    """Return the metrics of runs that match a glob. Raises AskError if there is none."""
    glob = re.compile(fnmatch.translate(pattern or "*"))
    names = dict.fromkeys(name for card in cards for name in known.metrics(card, glob))
    if pattern and not names:
        known.points(cards[0], pattern)
    return list(names)


def _with(pattern: str, lines: Iterator[OutputLine]) -> Iterator[OutputLine]:
    """Yield the lines in which a pattern is found. Raises AskError."""
    while pattern and (block := [*islice(lines, 10_000)]):
        texts = pa.array([line.text for line in block], pa.string())
        try:
            # Not `re`: some patterns would take it years, and it lets no other thread run meanwhile.
            found = pc.match_substring_regex(texts, pattern, ignore_case=True).to_pylist()
        except pa.ArrowInvalid as error:
            raise AskError("grep is not a regular expression.", asked=pattern, problem=str(error)) from error
        yield from (line for line, is_in in zip(block, found, strict=True) if is_in)
    yield from lines


def _asked(known: Runs, card: RunCard, name: str) -> Placed | None:
    """Return the last value of a metric, or with `best:` in front the best one."""
    if name.startswith("best:"):
        return known.best(card, name.removeprefix("best:"))
    return known.last(card, name.removeprefix("last:")) if name else None


def _finding(known: Runs, card: RunCard, one: Finding, offset: int | None) -> dict[str, Any]:
    names = ("kind", "severity", "state", "session", "start_step", "noticed_step", "message", "confidence")
    first = one.start_step or 0
    last = max(first if one.end_step is None else one.end_step, one.latest_step or 0)
    metric = one.metric if known.store.points(card.key, one.metric) is not None else card.loss_metric
    return {
        **{name: getattr(one, name) for name in names},
        "causes": one.causes[:2],
        "try": one.advice[:2],
        "record_offset": offset,
        "from": known.inputs(card, metric, (first, last)),
    }


def _error(error: Any) -> dict[str, Any]:
    fields = {
        name: getattr(error, name)
        for name in ("type", "message", "severity", "step", "rank", "count", "where")
    }
    return {name: value for name, value in fields.items() if value not in (None, "")}
