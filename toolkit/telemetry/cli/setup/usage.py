"""`telemetry setup usage`: show whether anonymous usage reports are sent, and everything they contain."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import LOGS, printable, refuse
from toolkit.telemetry.cli.run_list import chosen_run
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.importers.training_yaml import read_training_yaml
from toolkit.telemetry.logger.machine.environment import describe_environment
from toolkit.telemetry.logger.options import OptionsError, options_from_config, run_name_from_config
from toolkit.telemetry.logger.session.start_record import start_fields
from toolkit.telemetry.mirrors.usage.events import events_of
from toolkit.telemetry.mirrors.usage.options import UsageOptions
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.reader import records_of
from toolkit.telemetry.runfolder.records import START, STEP, Record

JSON_FORM: Final = """\
an object with `state`, a sentence that says whether reports are sent, and `events`: each has `event`, `timestamp`, \
`distinct_id` and `properties`, which docs/privacy.md lists."""


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
    add_json_argument(parser)
    parser.epilog = (
        "Of a YAML it shows the first event, as this machine would send it. This command never sends anything. "
        "Exit code: 0, or 2 if there is no such run or YAML."
    )


def run(args: argparse.Namespace) -> int:
    """Print the events, and on stderr whether they are sent; return 2 if there is no run or YAML."""
    try:
        records: Iterable[Record]
        if args.path.is_dir() or not os.path.lexists(args.path):
            path = chosen_run(args.path) / METRICS_JSONL
            records, state = records_of(path), _state_of_run(records_of(path))
        else:
            records, state = _yaml_at(args.path)
        events = list(events_of(records))
    except (OptionsError, OSError) as error:
        return refuse(f"{args.path}: {error}")
    sentence = f"Usage reports are {state}."
    if args.json:
        print_json({"state": sentence, "events": events})
        return 0
    import orjson

    print(printable(sentence), file=sys.stderr)
    print(orjson.dumps(events, option=orjson.OPT_INDENT_2).decode())
    return 0


def _state_of_run(records: Iterable[Record]) -> str:
    """Return what the run itself recorded in each session, whatever the environment is now."""
    off = UsageOptions().state("local", {})
    starts = [str(record.get("usage_reports") or off) for record in records if record.get("event") == START]
    return "; then ".join(dict.fromkeys(starts or [off]))


def _yaml_at(path: Path) -> tuple[list[Record], str]:
    """Return the first records of a training with this YAML on this machine, and the state of its reports."""
    config = read_training_yaml(path)
    options = options_from_config(config)
    fields = start_fields(
        run_name=run_name_from_config(config) or path.stem,
        config=config,
        lora=None,
        model=None,
        training=None,
    )
    envelope = {"time": time.time(), "elapsed": 0.0, "session": 1}
    start = {**fields, **describe_environment(), **envelope, "event": START, "seq": 0}
    mode = options.mode if options.enabled else "disabled"
    return [start, {**envelope, "event": STEP, "seq": 1, "global_step": 1}], options.usage_options.state(
        mode, os.environ
    )
