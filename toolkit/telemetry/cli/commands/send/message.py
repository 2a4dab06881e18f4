"""`telemetry message`: send a test message to the receivers in a training's YAML, or print it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import LOGS, chosen_run, printable, refuse, status_of
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.importers.training_yaml import read_training_yaml
from toolkit.telemetry.logger.options import (
    OptionsError,
    TelemetryOptions,
    options_from_config,
    run_name_from_config,
)
from toolkit.telemetry.mirrors.messages.delivery import DELIVERED, FAILED, Delivery, deliver
from toolkit.telemetry.mirrors.messages.message import TEST, RunState
from toolkit.telemetry.mirrors.messages.options import MessageOptions
from toolkit.telemetry.mirrors.messages.receiver import ReceiverOff, receiver_from
from toolkit.telemetry.mirrors.messages.run_events import RunEventReader, redacted_message
from toolkit.telemetry.mirrors.messages.services import SERVICES
from toolkit.telemetry.mirrors.messages.sink import link_to
from toolkit.telemetry.privacy.redaction import Redactor
from toolkit.telemetry.privacy.secret_shapes import MASK
from toolkit.telemetry.runfolder.layout import METRICS_JSONL, safe_run_name
from toolkit.telemetry.runfolder.reader import read_from, tail_records
from toolkit.telemetry.runfolder.records import START

_OFF: Final = "off"
_SHOWN: Final = "shown"
_MOST_ATTEMPTS: Final = 2
_TAIL_BYTES: Final = 256 * 1024

JSON_FORM: Final = """\
`{"receivers": […]}`; each has `name`, `service`, `status` (`delivered`, `failed`, `off`, or `shown` with `--show`), \
`reason`, `attempts`, `seconds`, and with `--show` the `address`, `headers` and `body` without secrets."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run or YAML."""
    parser.add_argument(
        "path",
        metavar="RUN_OR_YAML",
        nargs="?",
        type=Path,
        default=LOGS,
        help="a training's YAML, or the folder of a run that was started with one "
        f"(default: the newest run in {LOGS})",
    )
    parser.add_argument("--show", action="store_true", help="print what would be sent; send nothing")
    add_json_argument(parser)
    parser.epilog = (
        "Exit code: 0 if every receiver accepted the message, or could with --show; 1 if one did not; "
        "2 if there are no receivers."
    )


def run(args: argparse.Namespace) -> int:
    """Send a test message to every receiver, or print it; return 1 if one fails, 2 if there are no receivers."""
    try:
        if not os.path.lexists(args.path):
            args.path = chosen_run(args.path)
        options, run_state, folder = _options_and_state(args.path)
    except (OptionsError, OSError) as error:
        refuse(f"{args.path}: {error}")
        return 2
    receivers = options.message_options
    if not receivers:
        refuse(f"{args.path} has no messages: block under telemetry:, so its runs send no messages.")
        return 2
    if not options.may_send and not args.show:
        return refuse(
            f"telemetry.mode is {options.mode}, so nothing is sent; use --show to print what would be."
        )
    if args.path.is_dir() and not args.show and any(receiver.url is not None for receiver in receivers):
        # The folder is not trusted: it would choose where a message goes, and which variable's content goes with it.
        return refuse(
            f"{args.path} is a run folder, which is not trusted: its addresses are used only if they come from a "
            "variable (url_env). Give the training's YAML instead."
        )
    results = []
    for receiver in receivers:
        # Nor may the folder choose which networks are reached from here.
        one = replace(receiver, allow_private=False) if args.path.is_dir() else receiver
        results.append(_try(one, run_state, folder, show=args.show))
        if not args.json:
            hint = " (a run folder cannot allow it: give the training's YAML)" if args.path.is_dir() else ""
            print(_as_text(one, results[-1], hint))
    if args.json:
        print_json({"receivers": results})
    return int(any(result["status"] in (_OFF, FAILED) for result in results))


def _try(options: MessageOptions, run_state: RunState, folder: str, *, show: bool) -> dict[str, Any]:
    """Send a test message to a receiver, or make it only; return the receiver's part of the JSON."""
    result: dict[str, Any] = {"name": options.name, "service": options.to, "status": _OFF}
    result |= dict.fromkeys(("reason", "attempts", "seconds"))
    try:
        receiver = receiver_from(options, os.environ)
    except ReceiverOff as error:
        return {**result, "reason": str(error)}
    redactor = Redactor()
    lines = ["This is a test: messages about this run arrive."]
    message = replace(
        redacted_message(redactor.redact, run_state, TEST, TEST, "test message", lines, time=time.time()),
        link=link_to((folder, run_state.run_name), options.link, redactor),
    )
    if show:
        request = SERVICES[options.to].request(message, receiver.secret)
        headers = {name: _without(request.secrets, value) for name, value in request.headers.items()}
        body = _without(request.secrets, _body(request.body, request.headers))
        where = f"{receiver.address.shown}/{MASK if len(receiver.address.target) > 1 else ''}"
        return {**result, "status": _SHOWN, "address": where, "headers": headers, "body": body}
    delivery = Delivery(receiver, message)
    fields = delivery.to_fields(deliver(delivery, pause=_sleep, most_attempts=_MOST_ATTEMPTS))
    return {**result, **{key: fields[key] for key in result if key in fields and key != "name"}}


# ------------------------------------------------------------ options and state


def _options_and_state(path: Path) -> tuple[TelemetryOptions, RunState, str]:
    """Return the options, the state of the run, and the name of its folder."""
    if not path.is_dir():
        config = read_training_yaml(path)
        name = run_name_from_config(config) or path.stem
        return options_from_config(config), RunState(run_name=name, status="not started"), safe_run_name(name)
    folder = chosen_run(path)
    # Spans of its start-up may precede the start record.
    first = read_from(folder / METRICS_JSONL, max_bytes=_TAIL_BYTES).records
    start = next((record for record in first if record.get("event") == START), {})
    kept = start.get("config")
    if not isinstance(kept, Mapping):
        raise OptionsError("its start record has no configuration; give the training's YAML instead")
    reader = RunEventReader(
        RunState(run_name=str(start.get("run_name", folder.name))), redact=Redactor().redact
    )
    for record in [start, *tail_records(folder / METRICS_JSONL, _TAIL_BYTES)]:
        reader.take(record)
    run_state = replace(reader.run_state, status=status_of(folder), eta_s=None)
    try:
        return options_from_config(kept), run_state, folder.name
    except OptionsError as error:
        raise OptionsError(
            f"{error} (a run folder contains no secrets: give the training's YAML instead)"
        ) from error


# ------------------------------------------------------------ send or show


def _sleep(seconds: float) -> bool:
    print(f"  retrying in {seconds:.0f} s …", file=sys.stderr)
    time.sleep(seconds)
    return True


def _as_text(options: MessageOptions, result: Mapping[str, Any], hint: str) -> str:
    name, status, reason = options.name, result["status"], str(result["reason"])
    if status == _OFF:
        return f"{name}: off: {printable(reason)}{hint if 'allow_private' in reason else ''}"
    if status == DELIVERED:
        return f"{name}: delivered in {result['seconds']:.2g} s"
    if status == FAILED:
        attempts = "1 attempt" if result["attempts"] == 1 else f"{result['attempts']} attempts"
        return f"{name}: not delivered after {attempts}: {printable(reason)}"
    occasions = [f"on {', '.join(options.when)}", *(one.text for one in options.milestones)]
    headers = [f"{key}: {printable(value)}" for key, value in result["headers"].items()]
    body = [printable(line) for line in result["body"].splitlines()]
    lines = "\n  ".join([f"POST {result['address']}", *headers, "", *body])
    return f"{name} ({options.place}), {'; '.join(occasions)}\n  {lines}\n"


def _body(body: bytes, headers: Mapping[str, str]) -> str:
    if "json" not in headers.get("Content-Type", ""):
        return body.decode("utf-8", "replace")
    import orjson

    return orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2).decode()


def _without(secrets: frozenset[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text
