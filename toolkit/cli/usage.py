"""`telemetry usage`: whether anonymous usage reports are sent, and every word that is in them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit.cli.chosen_run import printable, refuse
from toolkit.cli.training_yaml import UnusableError, read_training_yaml, run_at
from toolkit.mirrors.usage.consent import OFF, SENT_TO, why_not
from toolkit.mirrors.usage.event import UsageEvent
from toolkit.mirrors.usage.usage_events import events_of
from toolkit.runfolder.blocks import blocks_of, records_in
from toolkit.runfolder.layout import METRICS_JSONL
from toolkit.runfolder.records import START, STEP, Record
from toolkit.telemetry.machine.environment import describe_environment
from toolkit.telemetry.options import (
    OptionsError,
    TelemetryOptions,
    find_block,
    options_from_config,
    run_name_from_config,
)
from toolkit.telemetry.start_record import start_fields


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare whose reports are meant."""
    parser.add_argument(
        "path",
        metavar="RUN_OR_YAML",
        nargs="?",
        type=Path,
        default=Path("logs"),
        help="a run folder, a folder of runs, whose newest is taken, or a training's YAML (default: logs)",
    )
    parser.add_argument(
        "--show", action="store_true", help="print the events, as JSON, all that is in them; nothing is sent"
    )
    parser.epilog = "Nothing is ever sent from here. Exit code: 0, or 1 where there is no such run or YAML."


def run(args: argparse.Namespace) -> int:
    """Say whether reports are sent and, where asked, print them; 1 where there is nothing to tell about."""
    try:
        is_run = args.path.is_dir()
        records, config = (_records(run_at(args.path)), {}) if is_run else _yaml_at(args.path)
        state = _state_of_run(args.path) if is_run else _state(config)
        events = list(events_of(records)) if args.show else []
    except (UnusableError, OptionsError, OSError) as error:
        return refuse(f"{args.path}: {error}")
    if not args.show:
        print(*map(printable, state.splitlines()), sep="\n")
        return 0
    print(*map(printable, state.splitlines()), sep="\n", file=sys.stderr)
    _print_events(events)
    if not is_run:
        print(
            "These are the figures from before a training. What run-progress and run-end would add, "
            "`telemetry usage --show RUN` prints of any run.",
            file=sys.stderr,
        )
    return 0


def _print_events(events: list[UsageEvent]) -> None:
    import orjson

    print(orjson.dumps([event.shown() for event in events], option=orjson.OPT_INDENT_2).decode())


def _state_of_run(path: Path) -> str:
    """Return what the run itself recorded, which today's environment does not change."""
    starts = [record for record in _records(run_at(path)) if record.get("event") == START]
    sentences = dict.fromkeys(_state_at(start, "This run") for start in starts)
    if len(sentences) > 1:
        return "\n".join(_state_at(start, f"Session {start.get('session')}") for start in starts)
    return next(iter(sentences), _state_at({}, "This run"))


def _state_at(start: Record, who: str) -> str:
    """Return what a start record says of usage reports, in a sentence about `who`."""
    recorded, config = start.get("usage_reports"), start.get("config")
    if isinstance(recorded, str) and recorded.startswith(SENT_TO):
        return f"{who} was started with usage reports to {recorded.removeprefix(SENT_TO)}."
    if isinstance(recorded, str) and recorded.startswith(OFF):
        return f"{who} was started without usage reports: {recorded.removeprefix(OFF)}."
    if not isinstance(config, Mapping):
        return (
            f"{who} names no usage reports: it was not asked for any, or an older version recorded nothing."
        )
    if not _asks_for_them(config):
        return f"{who} was started without usage reports: telemetry.usage_reports does not ask for them."
    return f"{who} asks for usage reports in its configuration; whether any were sent is not recorded."


def _asks_for_them(config: Mapping[str, Any]) -> bool:
    """Say whether a configuration asks for them; the rest of it is not looked at, and may be masked by now."""
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
    return f"Usage reports are on: they go to {usage.host}, with the key in {usage.key_env}. DO_NOT_TRACK=1 stops them."


def _records(folder: Path) -> Iterator[Record]:
    for block in blocks_of(folder / METRICS_JSONL):
        records, _ = records_in(block)
        yield from records


def _yaml_at(path: Path) -> tuple[Iterator[Record], Mapping[str, Any]]:
    """Return the records that a training by this YAML would begin with on this machine, and the configuration."""
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
