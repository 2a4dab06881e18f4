"""Answers what a chart asks for: the tiles of curves, as numbers in the form that a browser draws from."""

from __future__ import annotations

import math
import struct
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from toolkit.telemetry.formulas.formula import is_formula

from .answering import computed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from toolkit.telemetry.runs.curve_tiles import CurveTiles, TileQuery
    from toolkit.telemetry.runs.store import RunStore

CURVES_URL: Final = "/curves"
CSV_URL: Final = "/curves.csv"
_MOST_CURVES: Final = 64
_MOST_TILES: Final = 512
_MOST_BUCKETS: Final = 10_000
_WAIT_S: Final = 0.15
"""How long a request waits for records that are still being read; then it answers with what is there."""
_LEAST_WAIT_S: Final = 0.01
_COMPUTE_S: Final = 1.0
"""How long formulas are computed for an answer; a chart asks again for the rest."""
_CSV_WAIT_S: Final = 10.0
_COMPUTE_CSV_S: Final = 30.0
_NOT_ALL: Final = 0.999
_LARGEST: Final = 2**53


class _QuestionError(ValueError):
    """The question is not one; the message says which part, and what is allowed."""


async def answer_curves(request: Request) -> Response:
    """Answer with the tiles asked for, or with 400 and the reason in a sentence.

    The gates in front have checked the visitor's access, as for every file with contents of a run.
    """
    axis = request.query_params.get("x", "step")
    try:
        curves = _curves(axis, request.query_params.get("c", ""))
    except _QuestionError as error:
        return Response(f"{error}\n", 400, {"Cache-Control": "no-store"}, "text/plain")
    has_formula = any(
        is_formula(one) for one in (axis.removeprefix("metric:"), *(curve[1] for curve in curves))
    )
    return await computed(request, lambda: _answer(axis, curves), seconds=_COMPUTE_S, is_costly=has_formula)


def _answer(axis: str, curves: list[tuple[str, str, int, TileQuery]]) -> Response:
    # Imported here: they import numpy and pandas, which take a second.
    from . import session

    store = session.store()
    whole = _read_all(store, dict.fromkeys((run, rank) for run, _, rank, _ in curves))
    arrays = bytearray()
    header = [_one(store, curve, axis, whole[curve[0], curve[2]], arrays) for curve in curves]
    # NaN becomes null; JSON has no number for it.
    named = orjson.dumps({"curves": header})
    named += b" " * (-len(named) % 8)
    data = b"".join((struct.pack("<II", len(named), 0), named, arrays))
    return Response(data, headers={"Cache-Control": "no-store"}, media_type="application/octet-stream")


def _read_all(store: RunStore, logs: Iterable[tuple[str, int]]) -> dict[tuple[str, int], float | str]:
    """Read what is new, and return how much of each log was read so far, or why nothing was."""
    until = time.monotonic() + _WAIT_S
    # The first round only starts the readers, which then read side by side.
    whole = {(run, rank): _read(store, run, rank, 0.0) for run, rank in logs}
    for (run, rank), fraction in whole.items():
        if isinstance(fraction, float) and fraction < 1.0:
            whole[run, rank] = _read(store, run, rank, max(_LEAST_WAIT_S, until - time.monotonic()))
    return whole


async def answer_csv(request: Request) -> Response:
    """Answer with every logged value of curves between `from` and `to`, as CSV, or with 400 and the reason."""
    asked = request.query_params
    ends = asked.get("from"), asked.get("to")
    answer = partial(_csv, asked.get("x", "step"), asked.get("c", ""), ends)
    return await computed(request, answer, seconds=_COMPUTE_CSV_S, is_costly=True)


def _csv(axis: str, text: str, ends: tuple[str | None, str | None]) -> Response:
    from toolkit.telemetry.runs.columns.export import curves_to_csv
    from toolkit.telemetry.runs.store import Refused, UnknownRun

    from . import session

    store = session.store()
    kept = {"Cache-Control": "no-store"}
    try:
        window = _end("from", ends[0], -math.inf), _end("to", ends[1], math.inf)
        points = []
        for run, metric, rank, _ in _curves(axis, text):
            whole = _read(store, run, rank, _CSV_WAIT_S)
            if isinstance(whole, str):
                raise _QuestionError(whole)
            if whole < 1:
                raise _QuestionError(f"{whole:.0%} of the records are read; try again soon")
            series = store.series(run, metric, axis=axis, window=window, buckets=_LARGEST, rank=rank)
            if series.problem is not None:
                raise _QuestionError(series.problem)
            if series.computed < 1:
                raise _QuestionError(f"{series.computed:.0%} of {metric} are computed; try again soon")
            points.append((store.card(run).name, series))
        data = curves_to_csv(points, axis, window)
    except (_QuestionError, Refused, UnknownRun) as error:
        return Response(f"{error}\n", 400, kept, "text/plain")
    kept["Content-Disposition"] = 'attachment; filename="curves.csv"'
    return Response(data, headers=kept, media_type="text/csv")


def _end(name: str, text: str | None, otherwise: float) -> float:
    try:
        return otherwise if text is None else float(text)
    except ValueError:
        raise _QuestionError(f"{name} is {_short(text)}; it must be a number") from None


def _read(store: RunStore, run: str, rank: int, wait_s: float) -> float | str:
    from toolkit.telemetry.runs.store import Refused, StoreUnavailable, UnknownRun

    try:
        if rank and rank not in store.ranks(run):
            return f"the run has no records of rank {rank}"
        health = store.refresh(run, wait_s=wait_s, rank=rank)
    except (Refused, UnknownRun) as error:
        return error.why if isinstance(error, StoreUnavailable) else str(error)
    return 1.0 if health.complete else min(_NOT_ALL, health.fraction_read)


def _one(
    store: RunStore, curve: tuple[str, str, int, TileQuery], axis: str, whole: float | str, arrays: bytearray
) -> dict[str, Any]:
    from toolkit.telemetry.runs.curve_tiles import CurveTiles
    from toolkit.telemetry.runs.store import Refused, UnknownRun

    run, metric, rank, query = curve
    try:
        if isinstance(whole, str):
            raise Refused(whole)
        found = store.tiles(run, metric, query, axis=axis, rank=rank)
    except (Refused, UnknownRun) as error:
        found, whole = CurveTiles(version="", problem=str(error)), 1.0
    whole = min(whole, found.computed)
    answer: dict[str, Any] = {"run": run, "metric": metric, "rank": rank, "whole": whole}
    answer |= {name: getattr(found, name) for name in ("version", "smooth", "low", "high", "problem")}
    answer["pieces"] = [
        [piece.session, int(piece.is_superseded), piece.points, piece.first_x, piece.last_x]
        for piece in found.pieces
    ]
    answer["blocks"] = _blocks(found, arrays)
    if found.non_finite is not None:
        answer["non_finite"] = [[one.kind, one.first_x, one.last_x, one.count] for one in found.non_finite]
    if found.ranges is not None:
        answer["ranges"] = [
            [kind, one.first_x, one.last_x, many] for one in found.ranges for kind, many in one.kinds.items()
        ]
    return answer


def _blocks(found: CurveTiles, arrays: bytearray) -> list[dict[str, Any]]:
    described = []
    for block in found.blocks:
        at = len(arrays)
        last = (array for array in (block.bad, block.time) if array is not None)
        for array in (block.x, *block.values, block.weight, *last):
            data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            arrays += data + bytes(-len(data) % 8)
        one = {"piece": block.piece, "level": block.level, "first": block.first, "count": len(block.x)}
        described.append({**one, "type": f"f{block.values[0].itemsize}", "at": at})
    return described


# ---------------------------------------------------------------- what is asked for


def _curves(axis: str, text: str) -> list[tuple[str, str, int, TileQuery]]:
    from toolkit.telemetry.runs.curve_tiles import AXES, METRIC_AXIS

    if axis not in AXES and not (axis.startswith(METRIC_AXIS) and axis != METRIC_AXIS):
        raise _QuestionError(f"x is {_short(axis)}; it must be one of {', '.join(AXES)}, or metric:NAME")
    form = "[[run, metric, rank, ask, times], ...]"
    try:
        asked = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise _QuestionError(f"c is {_short(text)}; it must be JSON: {form}") from None
    if not isinstance(asked, list) or not 1 <= len(asked) <= _MOST_CURVES:
        raise _QuestionError(f"c must be a list of 1 to {_MOST_CURVES} curves: {form}")
    found = [_curve(number, one) for number, one in enumerate(asked)]
    if sum(len(query.tiles or ()) for *_, query in found) > _MOST_TILES:
        raise _QuestionError(f"c asks for more than {_MOST_TILES} tiles: ask for others in another request")
    return found


def _curve(number: int, asked: Any) -> tuple[str, str, int, TileQuery]:
    from toolkit.telemetry.runs.curve_tiles import TileQuery

    def check(is_right: bool, name: str, value: object, allowed: str) -> None:
        if not is_right:
            raise _QuestionError(f"{name} of curve {number} is {_short(value)}; it must be {allowed}")

    if not isinstance(asked, list) or not 4 <= len(asked) <= 5:
        what = "it must be [run, metric, rank, ask, times]"
        raise _QuestionError(f"curve {number} of c is {_short(asked)}; {what}")
    run, metric, rank, ask, times = (*asked, 0)[:5]
    check(isinstance(run, str) and isinstance(metric, str), "run and metric", [run, metric], "texts")
    check(_is_count(rank), "the rank", rank, "a whole number from 0 on")
    check(times in (0, 1), "times", times, "0 or 1")
    is_one = isinstance(ask, dict) and len(ask.keys() & {"fit", "tiles", "after"}) == 1
    check(is_one, "ask", ask, "an object with one of fit, tiles and after")
    fit, after, tiles, version = (
        ask.get("fit", 1),
        ask.get("after", []),
        ask.get("tiles", []),
        ask.get("version", ""),
    )
    check(isinstance(version, str), "version", version, "the text of an answer")
    check(_is_count(fit) and 1 <= fit <= _MOST_BUCKETS, "fit", fit, f"1 to {_MOST_BUCKETS}")
    check(isinstance(after, list) and all(map(_is_count, after)), "after", after, "counts of points")
    check(
        isinstance(tiles, list) and all(map(_is_tile, tiles)), "tiles", tiles, "[[piece, level, tile], ...]"
    )
    query = TileQuery(
        fit=fit,
        tiles=tuple(map(tuple, tiles)) if "tiles" in ask else None,
        after=tuple(after) if "after" in ask else None,
        version=version,
        times=bool(times),
    )
    return run, metric, rank, query


def _is_tile(one: object) -> bool:
    return isinstance(one, list) and len(one) == 3 and all(map(_is_count, one)) and one[1] <= 16


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
