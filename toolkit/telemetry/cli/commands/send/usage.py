"""`telemetry usage`: show whether anonymous usage reports are sent, and everything they contain."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import LOGS, chosen_run, printable, refuse
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.importers.summary import plain
from toolkit.telemetry.logger.machine.environment import describe_environment
from toolkit.telemetry.logger.options import (
    OptionsError,
    TelemetryOptions,
    find_block,
    options_from_config,
    run_name_from_config,
)
from toolkit.telemetry.logger.session.start_record import start_fields
from toolkit.telemetry.mirrors.usage.events import UsageEvent, events_of
from toolkit.telemetry.mirrors.usage.options import OFF, SENT_TO, why_not
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.reader import records_of
from toolkit.telemetry.runfolder.records import START, STEP, Record
from toolkit.telemetry.trainer.config import read_training_yaml

JSON_FORM: Final = """\
an object with `state`, a list of sentences that say whether reports are sent, and with `--show` `events`: each has \
`event`, `timestamp`, `distinct_id` and `properties`, which [usage-reports.md](usage-reports.md) lists."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run or YAML."""
    parser.add_argument(
        "path",
        metavar="RUN_OR_YAML",
        nargs="?",
        type=Path,
        default=LOGS,
        help=f"a run folder, a folder of runs to take the newest from, or a training's YAML (default: {LOGS})",
    )
    parser.add_argument(
        "--show", action="store_true", help="print the complete events as JSON; nothing is sent"
    )
    add_json_argument(parser)
    parser.epilog = "This command never sends anything. Exit code: 0, or 2 if there is no such run or YAML."


def run(args: argparse.Namespace) -> int:
    """Print whether reports are sent and, with --show, the events; return 2 if there is no run or YAML."""
    try:
        is_run = args.path.is_dir()
        records, config = (
            (records_of(chosen_run(args.path) / METRICS_JSONL), {}) if is_run else _yaml_at(args.path)
        )
        state = _state_of_run(args.path) if is_run else _state(config)
        events = list(events_of(records)) if args.show else []
    except (OptionsError, OSError) as error:
        return refuse(f"{args.path}: {error}")
    if args.json:
        shown = {"events": [plain(event.shown()) for event in events]} if args.show else {}
        print_json({"state": state.splitlines(), **shown})
        return 0
    if not args.show:
        print(*map(printable, state.splitlines()), sep="\n")
        return 0
    print(*map(printable, state.splitlines()), sep="\n", file=sys.stderr)
    _print_events(events)
    if not is_run:
        print(
            "This is what would be sent before a training. For what run-progress and run-end add, "
            "use `telemetry usage --show RUN` with any run.",
            file=sys.stderr,
        )
    return 0


def _print_events(events: list[UsageEvent]) -> None:
    import orjson

    print(orjson.dumps([event.shown() for event in events], option=orjson.OPT_INDENT_2).decode())


def _state_of_run(path: Path) -> str:
    """Return what the run itself recorded, whatever the environment is now."""
    starts = [
        record for record in records_of(chosen_run(path) / METRICS_JSONL) if record.get("event") == START
    ]
    sentences = dict.fromkeys(_state_at(start, "This run") for start in starts)
    if len(sentences) > 1:
        return "\n".join(_state_at(start, f"Session {start.get('session')}") for start in starts)
    return next(iter(sentences), _state_at({}, "This run"))


def _state_at(start: Record, who: str) -> str:
    """Return what a start record says about usage reports, as a sentence about `who`."""
    recorded, config = start.get("usage_reports"), start.get("config")
    if isinstance(recorded, str) and recorded.startswith(SENT_TO):
        return f"{who} sends usage reports to {recorded.removeprefix(SENT_TO)}."
    if isinstance(recorded, str) and recorded.startswith(OFF):
        return f"{who} sends no usage reports: {recorded.removeprefix(OFF)}."
    if not isinstance(config, Mapping):
        return f"{who} has no record of usage reports: none were requested, or an older version wrote it."
    if not _requests_reports(config):
        return f"{who} sends no usage reports: telemetry.usage_reports is not enabled."
    return f"{who} asks for usage reports in its configuration; whether any were sent is not recorded."


def _requests_reports(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration asks for reports; the rest of it is ignored, and may be masked by now."""
    try:
        block = find_block(config)
    except OptionsError:
        return False
    asked = (block or {}).get("usage_reports")
    return asked.get("enabled") is not False if isinstance(asked, Mapping) else asked is True


def _state(config: Mapping[str, Any]) -> str:
    options: TelemetryOptions = options_from_config(config)
    reason = why_not(options, os.environ)
    if reason is not None:
        return f"Usage reports are off: {reason}."
    usage = options.usage_options
    where = f"they go to {usage.host} with the key in {usage.key_env}"
    return f"Usage reports are on: {where}. Set DO_NOT_TRACK=1 to stop them."


def _yaml_at(path: Path) -> tuple[Iterator[Record], Mapping[str, Any]]:
    """Return the first records of a training with this YAML on this machine, and the configuration."""
    config = read_training_yaml(path)
    fields = start_fields(
        run_name=run_name_from_config(config) or path.stem,
        config=config,
        lora=None,
        model=None,
        training=None,
    )
    envelope = {"time": time.time(), "elapsed": 0.0, "session": 1}
    start = {**fields, **describe_environment(), **envelope, "event": START, "seq": 0}
    return iter([start, {**envelope, "event": STEP, "seq": 1}]), config
