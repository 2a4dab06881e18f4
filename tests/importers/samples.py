"""Logs that other tools wrote, each with what the tool's own reader says about it.

`samples.tar.xz` holds runs made for these tests with the real libraries. A checkout may have many more, in
`../shared/foreign` or where FOREIGN_LOGS says, from public repositories.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import os
import shutil
import sqlite3
import tarfile
import tempfile
from pathlib import Path

OTHERS = Path(os.environ.get("FOREIGN_LOGS") or Path(__file__).parents[3] / "shared" / "foreign")
STATES = {"RUNNING": "running", "FINISHED": "finished", "FAILED": "failed", "KILLED": "failed"}


@functools.cache
def _unpacked():
    folder = tempfile.TemporaryDirectory(prefix="samples-")
    with tarfile.open(Path(__file__).with_name("samples.tar.xz")) as archive:
        archive.extractall(folder.name, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder


def ours():
    """Return the folder of the samples, unpacked once for each process and removed when it ends."""
    return Path(_unpacked().name) / "samples"


def names(root):
    return sorted(
        f"{path.parent.name}/{path.name[: -len('.expected.json')]}" for path in root.glob("*/*.expected.json")
    )


def expected(root, name):
    return json.loads((root / f"{name}.expected.json").read_text("utf-8"))


def corrected(root, name):
    """Return what the official reader says; names that are in the log of SwanLab's database were left out."""
    content = expected(root, name)
    if name == "swanlab/local_2025":
        names = _swanlab_names(root / name / "swanlog" / "runs.swanlab")
        for run in content["runs"]:
            own = names[Path(run["run"]).name]
            run["metrics"] = {own.get(metric, metric): series for metric, series in run["metrics"].items()}
    return content


def _swanlab_names(path):
    """Return the name of each numbered folder by run, from a copy of the database that SQLite opens with its log."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for file in path.parent.glob(f"{path.name}*"):
            shutil.copy(file, folder)
        database = sqlite3.connect(Path(folder) / path.name)
        query = "SELECT run_id, tag.folder, tag.name FROM tag JOIN experiment ON experiment.id = tag.experiment_id"
        for run, number, name in database.execute(query):
            found.setdefault(run, {})[number] = name
        database.close()
    return found


def differences_of_aim_keys(content, points):
    """Return what differs where the steps are Aim's keys, and the points in the order of these."""
    from aim.storage.hashing import hash_auto

    series = {}
    for point in points:
        series.setdefault((point["run"], point["metric"]), []).append((hash_auto(point["step"]), point))
    wrong = []
    for run in content["runs"]:
        for name, said in run["metrics"].items():
            found = series.get((run["name"], name.removesuffix(" {}")), [])
            # RocksDB sorts keys as bytes.
            found.sort(key=lambda pair: pair[0].to_bytes(8, "big", signed=True))
            keys = [key for key, _ in found]
            ours = {
                "steps_back": sum(later < earlier for earlier, later in itertools.pairwise(keys)),
                "first": _end_of(found[0]) if found else {},
                "last": _end_of(found[-1]) if found else {},
            }
            for part in ("first", "last"):
                # Points of one step within a millisecond are one record of an export.
                if ours[part] and abs(ours[part]["time"] - said[part]["time"]) < 0.001:
                    ours[part]["time"] = said[part]["time"]
            problem = _difference({part: said[part] for part in ours}, ours)
            if problem:
                wrong.append(f"{run['hash']} {name}: {problem}")
    return wrong


def _end_of(pair):
    key, point = pair
    return {"step": key, "value": point["value"], "time": point["time"]}


def fingerprint(folder):
    """Return a checksum of names, contents and times of `folder` and everything below it."""
    digest = hashlib.sha256()
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        about = (path.relative_to(folder), status.st_size, status.st_mtime_ns, status.st_mode)
        digest.update(repr(about).encode())
        if path.is_file() and not path.is_symlink():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def expected_runs(format_name, content):
    """Yield where each run is, or its id, with what the official reader says about it."""
    for experiment in content.get("experiments", ()):
        for run in experiment["runs"]:
            yield f"id:{run['run_id']}", {**run, "experiment": experiment}
    for run in content.get("runs", ()):
        if format_name == "trackio":
            yield f"id:{run['run_id'] or run['run']}", run
        elif format_name == "aim":
            # The expected files have hashes of the steps: see differences_of_aim_keys.
            unsure = ("first", "last", "steps_back")
            metrics = {
                name.removesuffix(" {}"): {key: value for key, value in series.items() if key not in unsure}
                for name, series in run["metrics"].items()
            }
            yield f"id:{run['hash']}", {"metrics": metrics}
        else:
            yield run.get("file") or run.get("run"), run


def pieces_of(shown):
    """Return run and piece by path and by id, of what `telemetry show --json` prints."""
    found = {}
    for run in shown["runs"]:
        for piece in run["pieces"]:
            found.setdefault(piece["path"], (run, piece))
        found.setdefault(f"id:{run['run_id']}", (run, run["pieces"][0]))
    return found


def differences(format_name, content, shown):
    """Return what differs from the official reader, as texts; and how many series are equal."""
    wrong, equal = [], 0
    found = pieces_of(shown)
    for key, run in expected_runs(format_name, content):
        if key not in found:
            wrong.append(f"{key} is not there")
            continue
        ours_of_run, piece = found[key]
        for kind in ("metrics", "system"):
            series = run.get(kind) or {}
            for name, said in series.items():
                problem = _difference(said, piece[kind].get(name))
                if problem:
                    wrong.append(f"{key} {name}: {problem}")
                else:
                    equal += 1
        wrong += [f"{key}: {name} is too much" for name in piece["metrics"] if name not in run["metrics"]]
        for name, count in (run.get("not_numbers") or {}).items():
            if piece["not_numbers"].get(name) != count:
                wrong.append(
                    f"{key} {name}: {count} that are no numbers, {piece['not_numbers'].get(name)} found"
                )
        for name, value in (run.get("hparams") or run.get("config") or {}).items():
            if ours_of_run["config"].get(name) != value:
                wrong.append(f"{key}: config {name} is {ours_of_run['config'].get(name)!r}, not {value!r}")
        if "experiment" in run:
            wrong += _differences_of_mlflow(key, run, ours_of_run)
    return wrong, equal


def _differences_of_mlflow(key, run, ours_of_run):
    is_deleted = "deleted" in (run["lifecycle"], run["experiment"]["lifecycle"])
    pairs = {
        "status": (STATES[run["status"]], ours_of_run["status"]["state"]),
        "deleted": (is_deleted, ours_of_run["deleted"]),
        "parent": (run["parent"], ours_of_run["parent"]),
        "experiment": (run["experiment"]["name"], ours_of_run["group"]),
    }
    return [
        f"{key}: {name} is {found!r}, not {said!r}" for name, (said, found) in pairs.items() if said != found
    ]


def _difference(said, found):
    if found is None:
        return "is not there"
    for name, value in said.items():
        other = found.get(name)
        if name in ("first", "last"):
            for inner, number in value.items():
                if not _is_same(number, other.get(inner), is_time=inner == "time"):
                    return f"{inner} of the {name} is {other.get(inner)}, not {number}"
        elif not _is_same(value, other):
            return f"{name} is {other}, not {value}"
    return ""


def _is_same(said, found, *, is_time=False):
    if said == found:
        return True
    if not isinstance(said, (int, float)) or not isinstance(found, (int, float)):
        return False
    if is_time:
        # Some official readers give whole seconds.
        return math.isclose(said, found, abs_tol=2e-6, rel_tol=0) or (
            said == int(said) and int(found) == said
        )
    return math.isclose(said, found, rel_tol=1e-12)
