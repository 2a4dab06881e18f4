"""A package with one plug-in of each kind, and for each kind one that raises; docs/plugins.md describes them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import ClassVar

from toolkit.telemetry.diagnostics.catalogue import Kind
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.importers.detect import Format
from toolkit.telemetry.importers.folders import Found
from toolkit.telemetry.importers.source import Builder, Piece, SourceInfo, Status, source_id


class ToySource:
    """A run of the toy tool: a file with one loss a line."""

    def __init__(self, root, relative):
        path = Path(root, relative)
        self._path = path
        self.info = SourceInfo(
            format="toylog",
            source_id=source_id("toylog", str(path)),
            name=path.stem,
            root=Path(root),
            pieces=[Piece(relative)],
        )

    def read(self, cursor, *, max_bytes=0):
        builder = Builder()
        if cursor is None:
            for step, line in enumerate(self._path.read_text().split()):
                builder.add("train_loss", step, time.time(), float(line))
        builder.batch.cursor = b"end"
        return builder.batch

    def status(self, now):
        return Status("finished")

    def blob(self, ref, *, max_bytes=0):
        raise OSError("there are none")


def find(folder):
    names = [name for name in folder.files if name.endswith(".toy")]
    return Found([ToySource(folder.root, folder.below(name)) for name in names], frozenset(names))


def find_in_file(path, head):
    return ToySource(path.parent, path.name) if path.suffix == ".toy" else None


def fail(*args, **kwargs):
    raise RuntimeError("this plug-in is broken")


TOY_FORMAT = Format("toylog", "logs of the toy tool", "*.toy", (find,), (find_in_file,))
RAISING_FORMAT = Format("raises", "", "", (fail,), (fail,))


class ToyMirror:
    name = "toy"

    def __init__(self, settings, run):
        self._path = run.folder / settings["file"]
        self._count = 0

    def write(self, batch):
        self._count += len(batch)

    def close(self):
        self._path.write_text(json.dumps(self._count))


class RaisingMirror(ToyMirror):
    name = "raises"
    write = close = fail

    def __init__(self, settings, run):
        pass


class ToySampler:
    name = "toy"

    def __init__(self, log_dir):
        pass

    def sample(self):
        return {"toy_temperature": 21.5}

    def close(self):
        pass


class RaisingSampler(ToySampler):
    sample = fail


class ToyDetector(SingleIncidentDetector):
    signals = ("*",)
    kinds: ClassVar = {"toy_loss": Kind(title="Toy loss", severity="warning", message="{metric} was {peak}.")}

    def take(self, row):
        loss = row.record.get("train_loss") or 0
        if loss > 10 and self._incident is None:
            self._incident = self._incidents.open(
                "toy_loss", "train_loss", start_step=row.step, noticed_step=row.step, peak=loss
            )


class RaisingDetector(ToyDetector):
    kinds: ClassVar = {"toy_other": Kind(title="Another", severity="warning", message="{metric}")}
    take = fail


class ToyCommand:
    """`telemetry toy`: print a word."""

    def add_arguments(self, parser):
        parser.add_argument("--word", default="toy")

    def run(self, args):
        print("the word is", args.word)
        return 0


class RaisingCommand(ToyCommand):
    run = fail


TOY_COMMAND = ToyCommand()
RAISING_COMMAND = RaisingCommand()
NOT_A_PLUGIN = 3
