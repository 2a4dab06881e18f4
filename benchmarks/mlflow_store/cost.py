"""What `mlflow.log_metric` costs: our store, MLflow's file store and its SQLite store."""

from __future__ import annotations

import importlib.util
import os
import statistics
import tempfile
import time
from pathlib import Path

_ROUNDS = 5


def show(calls: int) -> None:
    """Time `calls` calls of each store, in turns, and print the medians with their ratio to ours."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow
    from mlflow.tracking._tracking_service import utils

    from ai_toolkit_telemetry.commands import mlflow_store

    utils._register("telemetry", mlflow_store)  # noqa: SLF001 - an installed package is found by its entry point
    with tempfile.TemporaryDirectory() as folder:
        stores = {
            "telemetry": f"telemetry://{folder}/logs",
            "file store": Path(folder, "mlruns").as_uri(),
        }
        if importlib.util.find_spec("alembic") is not None:
            stores["SQLite store"] = f"sqlite:///{folder}/mlflow.db"
        else:
            print("without the SQLite store: pip install mlflow, not mlflow-skinny")
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in stores}
        for _ in range(_ROUNDS):
            for name, uri in stores.items():
                mlflow.set_tracking_uri(uri)
                took[name].append(_time_calls(max(1, calls // _ROUNDS)))
    wall, cpu = (
        {name: statistics.median(pair[at] for pair in pairs) for name, pairs in took.items()} for at in (0, 1)
    )
    print(f"mlflow {mlflow.__version__}, {os.cpu_count()} cores, {calls} calls of mlflow.log_metric")
    for name in stores:
        print(
            f"{name:13} {wall[name]:8.0f} us, {cpu[name]:8.0f} us of processor time, "
            f"{cpu[name] / cpu['telemetry']:5.1f} times ours"
        )


def _time_calls(calls: int) -> tuple[float, float]:
    """Return microseconds of a call, by the clock and of the processor."""
    import mlflow

    with mlflow.start_run():
        mlflow.log_metric("loss", 1.0, step=0)
        began, cpu = time.perf_counter(), time.process_time()
        for step in range(1, calls + 1):
            mlflow.log_metric("loss", 1 / step, step=step)
        return (time.perf_counter() - began) / calls * 1e6, (time.process_time() - cpu) / calls * 1e6
