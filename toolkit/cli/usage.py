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
from toolkit.runfolder.blocks import blocks_of, records_in
from toolkit.runfolder.layout import METRICS_JSONL
from toolkit.runfolder.records import START, STEP, Record
from toolkit.telemetry.environment import describe_environment
from toolkit.telemetry.options import (
    OptionsError,
    TelemetryOptions,
    options_from_config,
    run_name_from_config,
)
from toolkit.telemetry.start_record import start_fields
from toolkit.telemetry.usage.consent import why_not
from toolkit.telemetry.usage.event import UsageEvent
from toolkit.telemetry.usage.story import events_of


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
        records, config = _run_at(args.path) if is_run else _yaml_at(args.path)
        state = _state_of_run(config) if is_run else _state(config or {})
        events = list(events_of(records)) if args.show else []
    except (UnusableError, OptionsError, OSError) as error:
        return refuse(f"{args.path}: {error}")
    if not args.show:
        print(printable(state))
        return 0
    print(printable(state), file=sys.stderr)
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


def _state_of_run(config: Mapping[str, Any] | None) -> str:
    if config is None:
        return "Whether this run sends usage reports is not known: its start record holds no configuration."
    try:
        return _state(config)
    except OptionsError as error:
        return f"Whether this run sends usage reports is not known: {error}"


def _state(config: Mapping[str, Any]) -> str:
    options: TelemetryOptions = options_from_config(config)
    reason = why_not(options, os.environ)
    if reason is not None:
        return f"Usage reports are off: {reason}."
    usage = options.usage_options
    return f"Usage reports are on: they go to {usage.host}, with the key in {usage.key_env}. DO_NOT_TRACK=1 stops them."


def _run_at(path: Path) -> tuple[Iterator[Record], Mapping[str, Any] | None]:
    """Return the records of a run and its configuration, where that is known."""
    folder = run_at(path)
    configs = (record.get("config") for record in _records(folder) if record.get("event") == START)
    config = next((config for config in configs if isinstance(config, Mapping)), None)
    return _records(folder), config


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
