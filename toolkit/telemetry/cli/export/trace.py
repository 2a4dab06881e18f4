"""`telemetry export --to trace`: the spans of a run as a Chrome trace, for Perfetto."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import printable
from toolkit.telemetry.cli.run_list import chosen_run
from toolkit.telemetry.cli.terminal import print_json
from toolkit.telemetry.exchange.export_runs import whole
from toolkit.telemetry.exchange.exported_run import new_file
from toolkit.telemetry.timing.chrome_trace import TRACE_BEGINS, trace_of_folder

JSON_FORM: Final = """\
`run`, `path` (of the trace) and `bytes`."""
_STDOUT: Final = Path("-")


def run(args: argparse.Namespace) -> int:
    """Write the trace and print where it is."""
    folder = chosen_run(args.run)
    if args.out == _STDOUT:
        for piece in trace_of_folder(folder):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return 0
    target = args.out or Path(f"{folder.resolve().name}-trace.json")
    with whole(target, is_ours=_is_trace, force=args.force) as half, new_file(half) as file:
        size = sum(file.write(piece) for piece in trace_of_folder(folder))
    if args.json:
        print_json({"run": str(folder), "path": str(target), "bytes": size})
        return 0
    print(
        f"{printable(str(target))}: {size / 1e6:.3g} MB. Open it in https://ui.perfetto.dev or chrome://tracing;"
    )
    print("both read the file in the browser and upload nothing.")
    return 0


def _is_trace(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(TRACE_BEGINS)) == TRACE_BEGINS
