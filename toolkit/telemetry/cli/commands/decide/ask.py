"""`telemetry ask`: ask a live run to save, sample, stop or change a setting, and wait for its answer."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.argument_types import seconds, whole
from toolkit.telemetry.cli.chosen_run import add_run_argument, printable, refuse
from toolkit.telemetry.cli.run_answer import GOOD, answer_text, knobs_in
from toolkit.telemetry.cli.run_list import chosen_run
from toolkit.telemetry.cli.terminal import Progress, add_json_argument, painted, print_json
from toolkit.telemetry.runfolder.control import (
    ControlRefused,
    ControlRequest,
    KnobValue,
    deliver,
    new_request,
)
from toolkit.telemetry.runfolder.journal.end_record import with_end_record
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.manifest import Manifest, ManifestError, read_manifest
from toolkit.telemetry.runfolder.reader import Cursor, read_from
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE, Record
from toolkit.telemetry.runfolder.status import RUNNING, STALLED, Status, work_out_status
from toolkit.telemetry.runfolder.untrusted import texts_in

JSON_FORM: Final = """\
an object with `run` (the folder), `asked` (`id`, and what of `log_every`, `actions` and `knobs` was asked for) and \
`answer`: `status` (`applied`, `clamped`, `superseded`, `expired` or `refused`), `reason`, `global_step`, `time`, and \
of what was done `actions`, `knobs`, `old`, `new`. `answer` is `null` if none came in time. If nothing is asked, it is \
an object with `run`, `status` and `control`, which lists what can be asked for."""

_LOOK_EVERY_S: Final = 0.2
_GRACE_S: Final = 10.0
"""A run answers a request that expired, too; this long is waited for that answer."""
_ANSWER: Final = ("status", "reason", "global_step", "time", "actions", "old", "new", "requested")
_SHORT: Final = ("save", "sample", "stop")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run and what to ask for."""
    add_run_argument(parser)
    parser.add_argument("--log-every", metavar="N", type=whole(), help="write a step record every N steps")
    for name, what in zip(
        _SHORT, ("save a checkpoint now", "make samples now", "stop after this step"), strict=True
    ):
        parser.add_argument(f"--{name}", action="store_true", help=what)
    parser.add_argument(
        "--action",
        metavar="NAME",
        action="append",
        default=[],
        help="any other action that the run declares; may be repeated",
    )
    parser.add_argument(
        "--set",
        metavar="KNOB=VALUE",
        action="append",
        default=[],
        type=_assignment,
        help="change a knob that the run declares; may be repeated",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=60.0,
        help="wait this long for the answer; the run does not obey later (default: 60)",
    )
    add_json_argument(parser)
    parser.epilog = (
        "Without a request it shows what the run can be asked for. Exit code: 0 if the run did it; 1 if it refused "
        "or did not get to it in time, with the reason; 2 if it is not live or did not answer."
    )


def run(args: argparse.Namespace) -> int:
    """Send the request and print the answer."""
    folder = chosen_run(args.run)
    try:
        manifest, status = _state_of(folder)
    except ManifestError as error:
        return refuse(f"{folder}: {error}")
    actions = [*(name for name in _SHORT if getattr(args, name)), *args.action]
    if args.log_every is None and not actions and not args.set:
        return _show_what_can_be_asked(folder, manifest, status, as_json=args.json)
    if status.name not in (RUNNING, STALLED):
        return refuse(f"{folder}: the run is {status.name} and cannot answer ({status.why})")
    knobs = {name: _as_declared(name, text, manifest.control) for name, text in args.set}
    records = folder / METRICS_JSONL
    try:
        # From the end on: the answer is written after the request.
        cursor = Cursor(records.stat().st_size)
        request = new_request(
            log_every=args.log_every,
            actions=actions,
            knobs=knobs,
            expires_in_s=args.timeout,
            run_id=manifest.run_id,
        )
        deliver(folder, request)
    except ControlRefused as refusal:
        return refuse(f"{folder}: {refusal.reason}")
    answer, why = _wait(folder, request, cursor, args.timeout)
    if args.json:
        asked = {"id": request.id, "log_every": args.log_every, "actions": actions, "knobs": knobs}
        kept = None
        if answer is not None:
            kept = {key: answer[key] for key in _ANSWER if key in answer} | {"knobs": knobs_in(answer)}
        print_json({"run": str(folder), "asked": asked, "answer": kept})
    if answer is None:
        return refuse(f"{folder}: {why}")
    if not args.json:
        word, rest = answer_text(answer)
        print(f"{printable(folder.name)}: {painted(word, 'green' if word in GOOD else 'red')}{rest}")
    return 0 if answer.get("status") in GOOD else 1


def _state_of(folder: Path) -> tuple[Manifest, Status]:
    manifest = with_end_record(read_manifest(folder), folder)
    return manifest, work_out_status(manifest, time.time())


def _wait(
    folder: Path, request: ControlRequest, cursor: Cursor, timeout_s: float
) -> tuple[Record | None, str]:
    """Return the answer, or None and why there is none."""
    began = time.monotonic()
    with Progress() as progress:
        while True:
            # Looked at before the records: a run that ends writes its last answers first.
            try:
                status = _state_of(folder)[1]
            except ManifestError as error:
                return None, f"no answer: {error}"
            answer, cursor = _answer_in(folder / METRICS_JSONL, request.id, cursor)
            if answer is not None:
                return answer, ""
            waited = time.monotonic() - began
            if status.name not in (RUNNING, STALLED):
                return None, f"no answer: the run is {status.name} now ({status.why})"
            if waited > timeout_s + _GRACE_S:
                return None, f"no answer within {timeout_s:g} s; the run is {status.name} ({status.why})"
            progress.show(f"waiting for the answer, {waited:.0f} s …")
            time.sleep(_LOOK_EVERY_S)


def _answer_in(records: Path, request_id: str, cursor: Cursor) -> tuple[Record | None, Cursor]:
    while True:
        chunk = read_from(records, cursor)
        for record in chunk.records:
            if record.get("event") == CONTROL_CHANGE and record.get("id") == request_id:
                return record, chunk.cursor
        if not chunk.records and not chunk.bad_count:
            return None, chunk.cursor
        cursor = chunk.cursor


# ------------------------------------------------------------ text


def _show_what_can_be_asked(folder: Path, manifest: Manifest, status: Status, *, as_json: bool) -> int:
    if as_json:
        print_json({"run": str(folder), "status": status.name, "control": dict(manifest.control)})
        return 0
    print(printable(f"{folder}: {status.name}, {status.why}"))
    control = manifest.control
    every = control.get("log_every")
    if isinstance(every, Mapping):
        limits = _limits({**every, "value": control.get("log_every_now")})
        print(printable(f"  --log-every N    {limits}"))
    for action in texts_in(control.get("actions")):
        print(printable(f"  --{action}" if action in _SHORT else f"  --action {action}"))
    for name, knob in _knobs_of(control).items():
        print(printable(f"  --set {name}=VALUE    {_limits(knob)}"))
    return 0


def _knobs_of(control: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    knobs = control.get("knobs")
    found = knobs.items() if isinstance(knobs, Mapping) else ()
    return {name: knob for name, knob in found if isinstance(knob, Mapping)}


def _limits(knob: Mapping[str, Any]) -> str:
    parts = [str(knob["type"])] if "type" in knob else []
    if knob.get("choices"):
        parts.append(f"one of {knob['choices']}")
    if knob.get("low") is not None or knob.get("high") is not None:
        parts.append(f"{knob.get('low')} to {knob.get('high')}")
    if knob.get("value") is not None:
        parts.append(f"{knob['value']} now")
    return ", ".join(parts)


# ------------------------------------------------------------ arguments


def _assignment(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not KNOB=VALUE")
    return name, value


def _as_declared(name: str, text: str, control: Mapping[str, Any]) -> KnobValue:
    """Return the value in the type of the knob; the run refuses a wrong one with a reason."""
    if _knobs_of(control).get(name, {}).get("type") == "str":
        return text
    try:
        value = json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float, str)) else text
