"""`telemetry setup message`: send a test message to the receivers in a training's YAML, or print it."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import printable, refuse
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.core.outbox import Delivery, NotSentError
from toolkit.telemetry.importers.training_yaml import read_training_yaml
from toolkit.telemetry.logger.options import OptionsError, options_from_config, run_name_from_config
from toolkit.telemetry.mirrors.messages.message import TEST, Message, RunState
from toolkit.telemetry.mirrors.messages.options import MessageOptions
from toolkit.telemetry.mirrors.messages.receiver import Receiver, ReceiverOff, receiver_from
from toolkit.telemetry.mirrors.messages.run_events import RunEvent, message_about
from toolkit.telemetry.mirrors.messages.services import SERVICES
from toolkit.telemetry.mirrors.messages.sink import DELIVERED, fields_of, link_to
from toolkit.telemetry.privacy.redaction import Redactor
from toolkit.telemetry.privacy.secret_shapes import MASK
from toolkit.telemetry.runfolder.layout import safe_run_name

_OFF: Final = "off"
_SHOWN: Final = "shown"

JSON_FORM: Final = """\
`{"receivers": […]}`; each has `name`, `service`, `status` (`delivered`, `failed`, `off`, or `shown` with `--show`), \
`reason`, `attempts`, `seconds`, and with `--show` the `address`, `headers` and `body` without secrets."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the YAML."""
    parser.add_argument("path", metavar="YAML", type=Path, help="a training's YAML")
    parser.add_argument("--show", action="store_true", help="print what would be sent; send nothing")
    add_json_argument(parser)
    parser.epilog = (
        "Exit code: 0 if every receiver accepted the message, or could with --show; 1 if one did not; "
        "2 if there are no receivers."
    )


def run(args: argparse.Namespace) -> int:
    """Send a test message to every receiver, or print it; return 1 if one fails, 2 if there are no receivers."""
    try:
        config = read_training_yaml(args.path)
        options = options_from_config(config)
    except (OptionsError, OSError) as error:
        return refuse(f"{args.path}: {error}")
    if not options.message_options:
        return refuse(f"{args.path} has no messages: block under telemetry:, so its runs send no messages.")
    if not options.may_send and not args.show:
        return refuse(
            f"telemetry.mode is {options.mode}, so nothing is sent; use --show to print what would be."
        )
    run_name = run_name_from_config(config) or args.path.stem
    results = []
    for receiver in options.message_options:
        results.append(_try(receiver, run_name, show=args.show))
        if not args.json:
            print(_as_text(receiver, results[-1]))
    if args.json:
        print_json({"receivers": results})
    return int(any(result["status"] not in (DELIVERED, _SHOWN) for result in results))


def _try(options: MessageOptions, run_name: str, *, show: bool) -> dict[str, Any]:
    """Send a test message to a receiver, or make it only; return the receiver's part of the JSON."""
    result: dict[str, Any] = {"name": options.name, "service": options.to, "status": _OFF}
    result |= dict.fromkeys(("reason", "attempts", "seconds"))
    try:
        receiver = receiver_from(options, os.environ)
    except ReceiverOff as error:
        return {**result, "reason": str(error)}
    redactor, state = Redactor(), RunState(run_name=run_name, status="not started")
    event = RunEvent(TEST, TEST, "test message", ["This is a test: messages about this run arrive."])
    message = replace(
        message_about(event, state, redactor.redact, time=time.time()),
        link=link_to((safe_run_name(run_name), run_name), options.link, redactor),
    )
    if show:
        return {**result, "status": _SHOWN, **_shown(receiver, message)}
    delivery, failure = Delivery(message, attempts=1), None
    try:
        receiver.send(message)
    except NotSentError as error:
        failure = error
    fields = fields_of(options, delivery, failure)
    return {**result, **{key: fields[key] for key in result if key in fields and key != "name"}}


def _shown(receiver: Receiver, message: Message) -> dict[str, Any]:
    """Return the request that would be sent, but for its secret: a mask takes its place, and signs it too."""
    body, headers = SERVICES[receiver.options.to].request(message, receiver.secret and MASK)
    return {"address": receiver.address.masked, "headers": headers, "body": body.decode("utf-8", "replace")}


def _as_text(options: MessageOptions, result: dict[str, Any]) -> str:
    name, status, reason = options.name, result["status"], printable(str(result["reason"]))
    if status == _OFF:
        return f"{name}: off: {reason}"
    if status == DELIVERED:
        return f"{name}: delivered in {result['seconds']:.2g} s"
    if status != _SHOWN:
        return f"{name}: not delivered: {reason}"
    headers = [f"{key}: {printable(value)}" for key, value in result["headers"].items()]
    body = [printable(line) for line in result["body"].splitlines()]
    lines = "\n  ".join([f"POST {result['address']}", *headers, "", *body])
    return f"{name} ({options.place}), on {', '.join(options.when)}\n  {lines}\n"
