"""Malicious run folders: links, pipes and devices in place of files, and records with any kind of value."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.made_runs import BEGAN, step_record, write_run
from toolkit.telemetry.runfolder.table.csv_table import build_table

SECRET = "canary-7f3b-of-a-file-outside"
"""The content of the file that every link leads to, as text and as a record; it must appear nowhere."""

FILES = (
    *("metrics.jsonl", "metrics.csv", "run.json", "labels.json", "control.json", "samples"),
    *("samples/0.png", "ranks", "ranks/00001.jsonl", "one_logger.jsonl"),
)
"""The files that are read in a run folder."""


def outside(place: Path) -> Path:
    """Return a folder outside any run folder, with a file for every name that is read in one."""
    folder = place / "outside"
    folder.mkdir()
    lines = [
        {
            "event": "start",
            "seq": 0,
            "session": 1,
            "time": BEGAN,
            "run_name": SECRET,
            "config": {"a": SECRET},
        },
        step_record(1, train_loss=0.5, note=SECRET),
        {"event": "error", "seq": 2, "session": 1, "time": BEGAN, "type": "E", "message": SECRET},
    ]
    records = "".join(f"{json.dumps(line)}\n" for line in lines)
    for name in {Path(name).name for name in FILES if "." in name}:
        text = (
            f"event,global_step,train_loss\n{SECRET},1,0.5\nstep,{SECRET},0.5\n" if "csv" in name else records
        )
        (folder / name).write_text(text)
    return folder


def an_ordinary_run(root: Path, name: str, **more: Any) -> Path:
    """Write a run with every kind of record."""
    span = {"id": "a", "name": "forward", "start": BEGAN, "duration": 0.5}
    events = [
        {"event": "error", "type": "ValueError", "message": "m"},
        {"event": "sample", "global_step": 1, "path": "samples/0.png"},
        {"event": "completion", "global_step": 1, "prompt": "p", "completion": "c"},
        {"event": "span", **span},
    ]
    extra = [
        {"seq": seq, "time": BEGAN, "session": 1, "rank": 0, **one} for seq, one in enumerate(events, 20)
    ]
    folder = write_run(
        root,
        name,
        sessions=(range(1, 6),),
        start={"run_name": name, "config": {"a": 1}},
        extra=extra,
        ranks={1: {"train_loss": lambda step: 1.0 / step}},
        **more,
    )
    (folder / "samples").mkdir()
    (folder / "samples" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    build_table(folder / "metrics.jsonl", folder / "metrics.csv", form="short")
    return folder


def put_in_place(path: Path, kind: str, outside: Path) -> None:
    """Put something of `kind` in place of a file of a run."""
    if path.is_dir() and not path.is_symlink():
        for inner in path.iterdir():
            inner.unlink()
        path.rmdir()
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if kind == "link":
        path.symlink_to(outside / path.name if "." in path.name else outside / "0.png")
    elif kind == "link to a folder":
        path.symlink_to(outside)
    elif kind == "link to itself":
        path.symlink_to(path.name)
    elif kind == "link to proc":
        path.symlink_to("/proc/self/environ")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        # A path may be longer than the address of a socket.
        here = os.open(path.parent, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)
    elif kind == "device":
        os.mknod(path, 0o20600, os.makedev(1, 5))  # zeros without end
    elif kind == "folder":
        path.mkdir()
    else:
        raise AssertionError(kind)


KINDS = ("link", "link to a folder", "link to itself", "link to proc", "fifo", "socket", "device", "folder")


def kinds_here() -> list[str]:
    """Return the kinds that this user may create."""
    return [kind for kind in KINDS if kind != "device" or os.geteuid() == 0]


# ---------------------------------------------------------------- values

ODD: tuple[Any, ...] = (
    None,
    True,
    "",
    "text",
    -1,
    0,
    2**53 + 1,
    2**63,
    -(2**70),
    1e308,
    -1e308,
    5e-324,
    "1e999",
    "NaN",
    [],
    {},
    [[[]]],
    {"a": {"b": [1, "x", None]}},
    [None, {}, 3, "x"],
    {"": 1},
    "\x1b]0;owned\x07\x1b[2J",
    "\u2028\x85\x0b line",
    "\ud800",
    "=cmd|' /C calc'!A1",
    "../../secret",
    "x" * 3000,
)

_ENVELOPE = {"time": BEGAN + 1, "elapsed": 1.0, "seq": 5, "session": 1, "rank": 0}

EVENTS: tuple[dict[str, Any], ...] = (
    {"event": "start", "run_name": "r", "run_id": "i", "config": {"a": {"b": 1}}, "max_steps": 10, "host": "h",
     "packages": {"torch": "2"}, "device": "cpu", "perf_tag": "p", "session_tag": "s", "batch_size": 2,
     "world_size": 2, "lora_rank": 4, "python": "3.11", "gpus": [{"name": "g"}]},
    {"event": "step", "global_step": 3, "train_loss": 0.5, "lr": 1e-4, "grad_norm": 1.0, "epoch": 1,
     "sec_per_step": 0.5, "samples_per_sec": 2.0, "nan_inf_detected": False, "non_finite": {}, "loss_scale": 2.0,
     "steps_folded": 2, "loss_jump": True, "data_s": 0.1, "rank": 1},
    {"event": "system", "cpu_percent": 5.0, "gpu0_util": 3.0, "gpus": [{"index": 0, "util": 1.0}],
     "cpu_mem_rss_mb": 5.0, "disk_free_gb": 1.0},
    {"event": "epoch", "epoch": 1, "global_step": 3, "train_loss": 0.4},
    {"event": "eval", "global_step": 3, "val_loss": 0.4},
    {"event": "checkpoint", "global_step": 3, "checkpoint_path": "a", "is_best": True, "seconds": 1.0, "bytes": 5},
    {"event": "sample", "global_step": 3, "path": "samples/0.png", "prompt": "p", "paths": ["a"]},
    {"event": "span", "id": "a", "parent_id": "b", "name": "forward", "start": BEGAN, "duration": 0.5,
     "clock": "host", "attributes": {"a": 1}, "thread": "t", "global_step": 3, "kept": "why"},
    {"event": "span_start", "id": "c", "parent_id": "b", "name": "x", "start": BEGAN, "attributes": {}},
    {"event": "span_event", "span_id": "a", "span": "forward", "name": "n", "attributes": {"a": 1}},
    {"event": "span_summary", "span_times": {"forward": {"count": 1, "total": 0.5, "p50": 0.5, "p95": 0.5}}},
    {"event": "ledger", "ledger": {"training": 1.0}, "training_s": 1.0},
    {"event": "completion", "global_step": 3, "prompt": "p", "completion": "c", "reward": 1.0, "kind": "k",
     "chosen": "a", "rejected": "b", "rewards": {"x": 1.0}},
    {"event": "completions_dropped", "from_step": 1, "to_step": 2, "written": 3, "dropped": 4},
    {"event": "message", "receiver": "r", "service": "s", "occasion": "start", "status": "delivered",
     "attempts": 1, "seconds": 0.1, "reason": "x", "about": ["end:1"], "tells_of": 2},
    {"event": "control_change", "id": "i", "status": "applied", "log_every": 5, "actions": ["stop"],
     "knobs": {"x": 1.0}, "reason": "x", "changes": {"log_every": [1, 2]}, "global_step": 3, "setting": "s",
     "old": "o", "new": "n"},
    {"event": "finding", "id": "f", "kind": "stall", "metric": "m", "severity": "critical", "state": "open",
     "message": "m", "start_step": 1, "noticed_step": 2, "end_step": 3, "evidence": {"a": 1.0},
     "causes": ["c"], "advice": ["a"], "remedies": ["x"], "repeats": 1, "resolved_step": 4, "stacks": []},
    {"event": "error", "id": "e", "type": "E", "message": "m", "stack": ["a"], "count": 2, "fingerprint": "f",
     "frames": [{"file": "f", "line": 1, "function": "g", "source": "s", "locals": {"a": "1"}}],
     "caused_by": [{"link": "cause", "message": "m", "stack": ["x"]}], "output": ["o"], "memory": {"a": 1},
     "thread": "t", "caught_by": "c", "spans": [{"name": "s", "seconds": "1", "thread": "t"}], "source": "x",
     "global_step": 3, "traceback": "a", "notes": ["n"], "gpu": {"a": "1"}, "group": [{"type": "E", "message": "m"}],
     "stacks": [{"threads": ["t"], "more_threads": 1, "stack": ["a"]}]},
    {"event": "lost", "records": 3, "reason": "r", "from_seq": 1, "to_seq": 3},
    {"event": "environment", "packages": {"a": "1"}, "gpus": [{"name": "g"}]},
    {"event": "end", "status": "finished", "reason": "r", "records": 5, "records_lost": 1, "seconds": 3.0,
     "global_step": 5, "errors": [{"fingerprint": "f", "count": 2}], "errors_of_other_kinds": 1,
     "telemetry_errors": 1},
)  # fmt: skip
"""One record of each kind, with every field that our code reads."""


def odd_records(of: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield `of` with each of its fields, inner ones too, in turn replaced by each odd value."""
    whole = {**_ENVELOPE, **of}
    for path in _paths(whole):
        for value in ODD:
            yield _with(whole, path, value)
        if len(path) == 1:
            yield {name: value for name, value in whole.items() if name != path[0]}


def _paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*above, name)
        yield from _paths(inner, (*above, name))


def _with(whole: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = dict(whole) if isinstance(whole, dict) else list(whole)
    copied[path[0]] = _with(whole[path[0]], path[1:], value)
    return copied


def as_line(record: dict[str, Any]) -> bytes:
    """Return `record` as a line of JSON, whatever its values; an odd word for a number becomes that number."""
    text = json.dumps(record).replace('"1e999"', "1e999").replace('"NaN"', "NaN")
    return text.encode() + b"\n"


LINES: tuple[bytes, ...] = (
    b"[" * 100_000 + b"\n",
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"\n",
    b'{"seq":1,"event":"step","x":' + b"9" * 5000 + b"}\n",
    b'{"seq":1,"event":"step","x":1e999}\n',
    b'{"seq":1,"event":"step","x":-1e999,"global_step":1e999}\n',
    b'{"seq":1,"event":"step","x":NaN,"y":Infinity,"z":-Infinity}\n',
    b'{"seq":1,"event":"step","event":"end","seq":2}\n',
    b'\xef\xbb\xbf{"seq":1,"event":"step"}\n',
    b'{"seq":1,"event":"step"}\x00\n',
    b"\x00" * 4096 + b"\n",
    b'{"seq":1,"event":"\xff\xfe"}\n',
    b'{"seq":1,"event":"step","note":"\\ud800"}\n',
    b'{"seq":1,"event":"step","\\udfff":1}\n',
    '{"seq":1,"event":"step","note":"a\u2028b\u2029c\x85d"}\n'.encode(),
    b'{"seq":1,"event":"step","note":"a\x0bb\x0cc\x1cd"}\n',
    b'{"seq":1,"event":"step","note":"a\\u000bb\\u2028"}\r\n',
    b"{" + b",".join(b'"k%d":%d' % (n, n) for n in range(60_000)) + b"}\n",
    b'{"seq":1,"event":"step","m":{' + b",".join(b'"k%d":%d' % (n, n) for n in range(6_000)) + b"}}\n",
    b'{"seq":1,"event":"step","m":[' + b"0," * 40_000 + b"0]}\n",
    b'"text"\n',
    b"null\n",
    b"12345678901234567890123456789012345678901234567890\n",
    b"{}\n",
    b'{"seq":1,"event":{"a":1}}\n',
    b'{"seq":1,"event":["step"]}\n',
    b"\x1b[31m{}\n",
    b"\x80\x04\x95\x1f\x00\x00\x00.\n",
)
"""Lines that are not, or hardly, a record."""
