"""A pytest plug-in: MLflow's tests use our store wherever they would use the file store or a database.

`BASELINE=file` leaves MLflow's file store in its tests, to see which of them fail by themselves.
"""

# ruff: noqa: SLF001 - it replaces what MLflow's tests use

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from mlflow.entities import RunStatus
from mlflow.tracking._model_registry import utils as registry
from mlflow.tracking._tracking_service import utils
from mlflow.utils.file_utils import local_file_uri_to_path

from ai_toolkit_telemetry.commands import mlflow_store
from toolkit.telemetry.compat.mlflow_store.run_folder import RunFolder
from toolkit.telemetry.compat.mlflow_store.run_state import Point, step_records
from toolkit.telemetry.compat.mlflow_store.store import _INFO, TelemetryStore

_OURS = os.environ.get("BASELINE") != "file"


class InPlace(TelemetryStore):
    """Our store with the file store's arguments."""

    def __init__(self, root_directory: Any = None, artifact_root_uri: Any = None) -> None:
        folder = Path(local_file_uri_to_path(str(root_directory or "mlruns"))).absolute()
        super().__init__(f"telemetry://{folder}", artifact_root_uri)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Use our store in all test modules, and run those that MLflow skips because its file store is not supported."""
    utils._register("telemetry", mlflow_store)
    for module in {module for item in items if (module := item.getparent(pytest.Module)) is not None}:
        is_of_files = [mark for mark in module.own_markers if "FileStore" in str(mark.kwargs.get("reason"))]
        module.own_markers = [mark for mark in module.own_markers if mark not in is_of_files]
        if _OURS and hasattr(module.obj, "FileStore"):
            module.obj.FileStore = InPlace
        if _OURS and hasattr(module.obj, "_create_root"):
            module.obj._create_root = partial(_with_run_folders, module.obj._create_root)
    if _OURS:
        conftest: Any = sys.modules["tests.conftest"]
        conftest._use_tracking_uri = _use_ours


def _with_run_folders(create_root: Any, store: InPlace) -> Any:
    """Write the same runs as `create_root`, which writes a file store by hand, as run folders."""
    created = create_root(store)
    for run_id, run in created[2].items():
        about = {name: run[name] for name in (*_INFO, "artifact_uri", "deleted_time")}
        status = RunStatus.to_string(run["status"])
        folder = RunFolder.create(store.log_dir, run_id, {**about, "status": status, "tags": {}}, None)
        with folder.log.alone():
            folder.log_params(run["params"])
            points = [
                Point(0, timestamp, value, key)
                for key, values in run["metrics"].items()
                for timestamp, value in values
            ]
            folder.append(step_records(points, now=time.time(), begin=0.0))
        shutil.rmtree(Path(store.root_directory, run["experiment_id"], run_id))
    return created


@contextmanager
def _use_ours(uri: str) -> Iterator[None]:
    """Use our store in place of the database at `uri`, which keeps the registry of models."""
    registry._get_store_registry().register("telemetry", lambda **_: registry._get_sqlalchemy_store(uri))
    with utils._use_tracking_uri(f"telemetry://{mkdtemp(prefix='mlflow-store-')}/logs"):
        yield
