"""The same runs in MLflow on SQLite, Aim and Trackio, each in a virtual environment of its own, by its own functions.

The second half of this file runs in those environments, as `python fleet_peers.py PEER WORK PLAN`, without our modules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PEERS = {"mlflow": "MLflow, SQLite", "aim": "Aim", "trackio": "Trackio"}
_PATIENCE_S = 1200.0


def measure(name: str, venvs: Path, work: Path, plan: dict[str, Any]) -> dict[str, float] | str:
    """Return the figures of a peer, installed first where it is not there; or why there are none."""
    python = venvs / name / "bin" / "python"
    if not python.exists():
        done = _run([sys.executable, "-m", "venv", str(venvs / name)])
        done = done or _run([str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", name])
        if done is not None:
            return f"{PEERS[name]}: not measured, {done}"
    work.mkdir(parents=True)
    failed = _run([str(python), __file__, name, str(work), json.dumps(plan)])
    answer = work / "answer.json"
    if failed is not None or not answer.exists():
        return f"{PEERS[name]}: not measured, {failed}"
    found: dict[str, float] = json.loads(answer.read_text(encoding="utf-8"))
    return found


def _run(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)[:200]
    lines = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else (lines[-1][:200] if lines else f"exit code {done.returncode}")


# ------------------------------------------------------------ in the peer's own environment


def _records(folder: Path, first: int | None = None) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield step and numbers of the step records of a run folder of ours."""
    left = first if first is not None else 1 << 60
    with (folder / "metrics.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if record["event"] != "step":
                continue
            if left <= 0:
                return
            left -= 1
            envelope = {
                "event",
                "seq",
                "session",
                "time",
                "elapsed",
                "global_step",
                "epoch",
                "nan_inf_detected",
            }
            yield (
                record["global_step"],
                {name: float(value) for name, value in record.items() if name not in envelope},
            )


def _cpu_ms(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1e3


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _mlflow(work: Path, plan: dict[str, Any]) -> dict[str, float]:
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{work}/mlflow.db"
    from mlflow import MlflowClient  # type: ignore[import-not-found,unused-ignore]
    from mlflow.entities import Metric  # type: ignore[import-not-found,unused-ignore]

    client = MlflowClient()
    experiment = client.create_experiment("bench")
    runs, values = [], 0
    began = time.process_time()
    for folder in plan["small"]:
        run = client.create_run(experiment).info.run_id
        runs.append(run)
        batch = [
            Metric(name, value, 0, step)
            for step, record in _records(Path(folder))
            for name, value in record.items()
        ]
        values += len(batch)
        for first in range(0, len(batch), 1000):
            client.log_batch(run, metrics=batch[first : first + 1000])
    found = {"value_us": (time.process_time() - began) / values * 1e6}
    found["bytes"] = _size(work) / (values / 8)
    large = client.create_run(experiment).info.run_id
    points = [
        Metric("train_loss", record["train_loss"], 0, step)
        for step, record in _records(Path(plan["large"]), plan["points"])
    ]
    for first in range(0, len(points), 1000):
        client.log_batch(large, metrics=points[first : first + 1000])
    for _ in range(plan["runs"] - len(runs) - 1):
        client.set_terminated(client.create_run(experiment).info.run_id)

    def listed() -> None:
        page, count = None, 0
        while page is None or page.token:
            page = client.search_runs([experiment], max_results=1000, page_token=page.token if page else None)
            count += len(page)
        assert count == plan["runs"]

    found["list_ms"] = _cpu_ms(listed)
    found["curve_ms"] = _cpu_ms(lambda: client.get_metric_history(large, "train_loss"))
    found["compare_ms"] = _cpu_ms(lambda: [client.get_metric_history(run, "train_loss") for run in runs[:8]])
    found["group_ms"] = _cpu_ms(lambda: [client.get_metric_history(run, "train_loss") for run in runs[:50]])
    return found


def _aim(work: Path, plan: dict[str, Any]) -> dict[str, float]:
    from aim import Repo, Run  # type: ignore[import-not-found,unused-ignore]

    repo = Repo.from_path(str(work / "aim"), init=True)
    repo.structured_db.run_upgrades()
    hashes, values = [], 0
    began = time.process_time()
    for folder in plan["small"]:
        run = Run(repo=repo, system_tracking_interval=None, capture_terminal_logs=False)
        hashes.append(run.hash)
        for step, record in _records(Path(folder)):
            for name, value in record.items():
                run.track(value, name=name, step=step)
                values += 1
        run.close()
        if not repo.list_all_runs() or not list(repo.iter_runs()):
            raise SystemExit("it finds none of the runs that it has logged")
    found = {"value_us": (time.process_time() - began) / values * 1e6}
    found["bytes"] = _size(work) / (values / 8)
    large = Run(repo=repo, system_tracking_interval=None, capture_terminal_logs=False)
    for step, record in _records(Path(plan["large"]), plan["points"]):
        large.track(record["train_loss"], name="train_loss", step=step)
    large.close()
    for _ in range(plan["runs"] - len(hashes) - 1):
        Run(repo=repo, system_tracking_interval=None, capture_terminal_logs=False).close()
    repo = Repo.from_path(str(work / "aim"))

    def listed() -> None:
        found_runs = [(run.name, run.created_at) for run in repo.iter_runs()]
        assert len(found_runs) == plan["runs"], len(found_runs)

    def curves(wanted: list[str]) -> None:
        count = 0
        for run in repo.query_metrics(f"metric.name == 'train_loss' and run.hash in {wanted!r}").iter_runs():
            for metric in run:
                metric.values.sparse_numpy()
                count += 1
        assert count == len(wanted), count

    found["list_ms"] = _cpu_ms(listed)
    found["curve_ms"] = _cpu_ms(lambda: curves([large.hash]))
    found["compare_ms"] = _cpu_ms(lambda: curves(hashes[:8]))
    found["group_ms"] = _cpu_ms(lambda: curves(hashes[:50]))
    return found


def _trackio(work: Path, plan: dict[str, Any]) -> dict[str, float]:
    os.environ["TRACKIO_DIR"] = str(work / "trackio")
    os.environ["HF_HUB_OFFLINE"] = "1"
    from trackio import server  # type: ignore[import-not-found,unused-ignore]
    from trackio.sqlite_storage import SQLiteStorage  # type: ignore[import-not-found,unused-ignore]

    names, values = [], 0
    began = time.process_time()
    for folder in plan["small"]:
        names.append(Path(folder).name)
        numbers, records = zip(*_records(Path(folder)), strict=True)
        SQLiteStorage.bulk_log("bench", names[-1], list(records), steps=list(numbers))
        values += sum(map(len, records))
    found = {"value_us": (time.process_time() - began) / values * 1e6}
    found["bytes"] = _size(work) / (values / 8)
    numbers, records = zip(*_records(Path(plan["large"]), plan["points"]), strict=True)
    SQLiteStorage.bulk_log(
        "bench", "large", [{"train_loss": record["train_loss"]} for record in records], steps=list(numbers)
    )
    for number in range(plan["runs"] - len(names) - 1):
        SQLiteStorage.bulk_log("bench", f"other-{number}", [{"train_loss": 1.0}], steps=[0])

    def curves(wanted: list[str]) -> None:
        found_logs = server.get_logs_batch(
            "bench", [{"run": name, "run_id": None} for name in wanted], scalar_only=True
        )
        assert len(found_logs) == len(wanted)
        assert all(one["logs"] for one in found_logs)

    def listed() -> None:
        assert len(SQLiteStorage.get_runs("bench")) == plan["runs"]

    found["list_ms"] = _cpu_ms(listed)
    found["curve_ms"] = _cpu_ms(lambda: curves(["large"]))
    found["compare_ms"] = _cpu_ms(lambda: curves(names[:8]))
    found["group_ms"] = _cpu_ms(lambda: curves(names[:50]))
    return found


if __name__ == "__main__":
    _peer, _work, _plan = sys.argv[1:]
    _figures = {"mlflow": _mlflow, "aim": _aim, "trackio": _trackio}[_peer](Path(_work), json.loads(_plan))
    (Path(_work) / "answer.json").write_text(json.dumps(_figures), encoding="utf-8")
