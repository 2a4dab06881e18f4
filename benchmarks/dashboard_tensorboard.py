"""How long TensorBoard takes to serve a whole run, compared with our opening of one ten times as large."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks import served
from benchmarks.command import say
from benchmarks.dashboard_part import Openings, Part, Plan
from benchmarks.large_run import BEGAN, SECONDS_A_STEP, steps
from benchmarks.report import Claim

_LOOK_EVERY_S = 0.5
_PATIENCE_S = 600.0
_TIMES_SOONER = 10.0
_LAST = "written_last"
"""A scalar with a single last point: requesting it is cheap, and it arrives after all others."""


def measure(plan: Plan, openings: Openings | None) -> Part:
    """Start TensorBoard on a run, with defaults and with all points kept, and wait for the last step."""
    part = Part()
    if importlib.util.find_spec("tensorboard") is None:
        part.notes.append("TensorBoard: not measured, tensorboard not installed")
        return part
    records = plan.tensorboard_records
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        say(f"tensorboard: writing a run of {records:,} records")
        write_events(folder / "logs", records)
        for key, words, arguments in (
            ("default", "with defaults", []),
            # Its help says that 0 keeps everything, but the data endpoints then return nothing.
            ("all", "all points kept", ["--samples_per_plugin", f"scalars={records + 1}"]),
        ):
            say(f"tensorboard, {words}: until the last of {records:,} records is there")
            found = _seconds_until_all(folder, records, arguments, all_points=key == "all")
            part.figures[key] = found
            middle = part.add(
                f"TensorBoard, {records:,} records, {words} ({found['points']:,} points per curve)",
                [found["from_answering_s"]],
                "s",
                openings,
            )
            if openings is None:
                continue
            for ours, which in ((openings.cold_s, "cold"), (openings.warm_s, "columns cached")):
                part.claims.append(
                    Claim(
                        text=f"our {plan.records:,} records, {which}, faster than TensorBoard's {records:,}, {words}",
                        measured=middle / ours,
                        limit=_TIMES_SOONER,
                        unit="x",
                        at_least=True,
                    )
                )
    fast = _has_data_server()
    part.figures["data_server"] = fast
    part.notes.append(
        "TensorBoard: from its first answer until its data endpoint gives the last step of the run, without drawing; "
        + ("with" if fast else "this platform has no build of")
        + " its fast data server"
    )
    return part


def write_events(folder: Path, records: int) -> None:
    """Write the event file of a SummaryWriter after `records` steps of ten scalars."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir()
    # SummaryWriter does the same through a queue and a thread, but takes minutes.
    with (folder / f"events.out.tfevents.{int(BEGAN)}.bench.1.0").open("wb", buffering=1 << 20) as file:
        writer = RecordWriter(file)

        def write(tag: str, value: float, step: int) -> None:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            event = Event(wall_time=BEGAN + step * SECONDS_A_STEP, step=step, summary=summary)
            writer.write(event.SerializeToString())

        writer.write(Event(wall_time=BEGAN, file_version="brain.Event:2").SerializeToString())
        for step, values in steps(0, records):
            for tag, value in values.items():
                write(tag, float(value), step)
        write(_LAST, 1.0, records)


def _seconds_until_all(
    folder: Path, records: int, arguments: list[str], *, all_points: bool
) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "tensorboard.main", "--logdir", str(folder / "logs"), "--port", "0",
        "--host", "127.0.0.1", *arguments,
    ]  # fmt: skip
    with served.Served(command, folder / "home", says=r"TensorBoard \S+ at (http://\S+)") as server:
        answering = time.perf_counter()
        while not _series(server.url, _LAST):
            if time.perf_counter() - answering > _PATIENCE_S:
                raise RuntimeError(f"TensorBoard has not read the run in {_PATIENCE_S:g} s")
            time.sleep(_LOOK_EVERY_S)
        points = _series(server.url, "train_loss")
        done = time.perf_counter()
        if points[-1][1] != records - 1 or (all_points and len(points) != records):
            raise RuntimeError(f"TensorBoard serves {len(points)} points up to step {points[-1][1]}")
        return {
            "from_answering_s": done - answering,
            "from_start_s": done - server.began,
            "points": len(points),
            "rss_mb": server.rss_mb,
        }


def _series(url: str, tag: str) -> list[list[float]]:
    query = urllib.parse.urlencode({"run": ".", "tag": tag})
    try:
        with urllib.request.urlopen(f"{url}/data/plugin/scalars/scalars?{query}", timeout=120) as answer:
            return list(json.load(answer))
    except urllib.error.HTTPError as error:
        # Not read yet.
        error.close()
        return []


def _has_data_server() -> bool:
    if importlib.util.find_spec("tensorboard_data_server") is None:
        return False
    # Untyped, and not always installed.
    data_server: Any = importlib.import_module("tensorboard_data_server")
    return data_server.server_binary() is not None
