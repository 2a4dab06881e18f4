"""MLflow's tracking store over a log directory: its runs are run folders.

Experiments, logged models and traces belong to no single run. MLflow's own file store keeps them, in `.mlflow`.
"""

# ruff: noqa: D102, SLF001 - the methods, and what they share with the file store, are MLflow's

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from mlflow import entities as mlflow
from mlflow.entities.lifecycle_stage import LifecycleStage
from mlflow.entities.run_info import check_run_is_active
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    INTERNAL_ERROR,
    INVALID_PARAMETER_VALUE,
    INVALID_STATE,
    RESOURCE_DOES_NOT_EXIST,
)
from mlflow.store.entities.paged_list import PagedList
from mlflow.store.tracking.abstract_store import AbstractStore
from mlflow.store.tracking.file_store import FileStore
from mlflow.utils import mlflow_tags, validation
from mlflow.utils.name_utils import _generate_random_name
from mlflow.utils.search_utils import SearchUtils
from mlflow.utils.uri import append_to_uri_path, resolve_uri_if_local

from toolkit.telemetry.compat.mlflow_store import run_folder
from toolkit.telemetry.compat.mlflow_store.run_folder import EXPERIMENT, RunFolder
from toolkit.telemetry.compat.mlflow_store.run_state import Point, RunState, history_in, start_s, step_records
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.privacy.record_masking import RecordMasker
from toolkit.telemetry.privacy.secret_names import secrecy_of
from toolkit.telemetry.privacy.secret_shapes import MASK
from toolkit.telemetry.privacy.text_tree import Position
from toolkit.telemetry.runfolder.codec import encodable
from toolkit.telemetry.runfolder.layout import make_folders
from toolkit.telemetry.runfolder.manifest import ManifestError, read_manifest

OWN_FOLDER: Final = ".mlflow"
_MOST_DATASETS: Final = 1000
_RUN_NAME: Final[str] = mlflow_tags.MLFLOW_RUN_NAME
_INFO: Final[dict[str, Any]] = {
    **dict.fromkeys(("lifecycle_stage", "run_name", "status"), str),
    "user_id": (str, type(None)),
    **dict.fromkeys(("start_time", "end_time"), (int, type(None))),
}
_DATASET: Final = frozenset({"name", "digest", "source_type", "source", "tags"})


class TelemetryStore(FileStore):  # type: ignore[misc]  # MLflow is not always installed
    """MLflow's store. A run's call that has returned is in the run folder, and survives a kill of the process."""

    def __init__(self, store_uri: str | None = None, artifact_uri: str | None = None) -> None:
        # Not the file store's: that one refuses unless a variable is set, for a layout that runs do not have here.
        AbstractStore.__init__(self)
        self.log_dir = log_dir_of(store_uri)
        own = self.log_dir / OWN_FOLDER
        self.artifact_root_uri = resolve_uri_if_local(artifact_uri) if artifact_uri else own.as_uri()
        self._runs: dict[str, RunFolder] = {}
        self._other_folders: set[str] = set()
        self._locations: dict[str, str | None] = {}
        self._masker = RecordMasker()
        with _errors_of_mlflow(self.log_dir):
            make_folders(self.log_dir, 0o775)
            if not own.is_dir():
                self._make_own_folder(own)
        self.root_directory = str(own)
        self.trash_folder = str(own / self.TRASH_FOLDER_NAME)
        _stores.add(self)

    def _make_own_folder(self, own: Path) -> None:
        """Make it under another name: another process may make it now, and this one may be killed."""
        making = own.with_name(f"{OWN_FOLDER}-{os.urandom(6).hex()}")
        make_folders(making / self.TRASH_FOLDER_NAME, 0o700)
        self.root_directory = str(making)
        self._create_default_experiment()
        try:
            os.rename(making, own)
        except OSError:
            shutil.rmtree(making)
            if not own.is_dir():
                raise

    # ------------------------------------------------------------ experiments: their runs

    def _hard_delete_experiment(self, experiment_id: str) -> None:
        for run in self._runs_of(experiment_id):
            self._hard_delete_run(run.run_id)
        super()._hard_delete_experiment(experiment_id)

    def _create_experiment_with_id(
        self, name: str, experiment_id: str, artifact_uri: str | None, tags: Any
    ) -> Any:
        return super()._create_experiment_with_id(self._masked_name(name), experiment_id, artifact_uri, tags)

    def get_experiment_by_name(self, experiment_name: str) -> Any:
        return super().get_experiment_by_name(self._masked_name(experiment_name))

    def set_experiment_tag(self, experiment_id: str, tag: Any) -> None:
        super().set_experiment_tag(experiment_id, *self._masked_entities([tag]))

    def delete_experiment_tag(self, experiment_id: str, key: str) -> None:
        super().delete_experiment_tag(experiment_id, self._masked_name(key))

    def rename_experiment(self, experiment_id: str, new_name: str) -> None:
        new_name = self._masked_name(new_name)
        super().rename_experiment(experiment_id, new_name)
        for run in self._runs_of(experiment_id):
            with _errors_of_mlflow(run.folder):
                run.change({}, project=new_name)

    # ------------------------------------------------------------ models: without secrets

    def create_logged_model(
        self,
        experiment_id: str = FileStore.DEFAULT_EXPERIMENT_ID,
        name: Any = None,
        *others: Any,
        **more: Any,
    ) -> Any:
        name = name and self._masked_name(name)
        return super().create_logged_model(experiment_id, name, *others, **more)

    def log_logged_model_params(self, model_id: str, params: Any) -> None:
        super().log_logged_model_params(model_id, self._masked_entities(params))

    def set_logged_model_tags(self, model_id: str, tags: Any) -> None:
        super().set_logged_model_tags(model_id, self._masked_entities(tags))

    def delete_logged_model_tag(self, model_id: str, key: str) -> None:
        super().delete_logged_model_tag(model_id, self._masked_name(key))

    # ------------------------------------------------------------ runs

    def create_run(self, experiment_id: Any, user_id: Any, start_time: Any, tags: Any, run_name: Any) -> Any:
        experiment = self.get_experiment(experiment_id)
        if experiment.lifecycle_stage != LifecycleStage.ACTIVE:
            raise MlflowException(
                f"Could not create run under non-active experiment with ID {experiment_id}.", INVALID_STATE
            )
        tags = tags or []
        named = mlflow_tags._get_run_name_from_tags(tags)
        if run_name and named and run_name != named:
            raise _invalid(
                "Both 'run_name' argument and 'mlflow.runName' tag are specified, but with "
                f"different values (run_name='{run_name}', mlflow.runName='{named}')."
            )
        name = self._masked_name(run_name or named or _generate_random_name())
        for tag in tags:
            validation._validate_tag_name(tag.key)
        run_id = uuid.uuid4().hex
        about = {
            "experiment_id": experiment.experiment_id,
            "run_name": name,
            "user_id": encodable(user_id),
            "start_time": start_time,
            "end_time": None,
            "status": "RUNNING",
            "lifecycle_stage": LifecycleStage.ACTIVE,
            "tags": {**self._masked_items(tags), _RUN_NAME: name},
        }
        is_default = experiment.name == mlflow.Experiment.DEFAULT_EXPERIMENT_NAME
        with _errors_of_mlflow(self.log_dir):
            run = RunFolder.create(self.log_dir, run_id, about, None if is_default else experiment.name)
            self._runs[run_id] = run
            return self._entity(run)

    def _hard_delete_run(self, run_id: str) -> None:
        shutil.rmtree(self._run(run_id).folder)
        self._runs.pop(run_id, None)

    def _get_deleted_runs(self, older_than: int = 0) -> list[str]:
        latest = int(time.time() * 1000) - older_than
        abouts = {run.run_id: run.log.state().about for run in self._runs_of(None)}
        return [
            run_id
            for run_id, about in abouts.items()
            if about["lifecycle_stage"] == LifecycleStage.DELETED
            and (about.get("deleted_time") or 0) <= latest
        ]

    def _list_run_infos(self, experiment_id: Any, view_type: Any) -> list[Any]:
        found = map(self._info, self._runs_of(experiment_id))
        return [info for info in found if LifecycleStage.matches_view_type(view_type, info.lifecycle_stage)]

    def _get_run_info(self, run_uuid: str) -> Any:
        return self._info(self._run(run_uuid))

    def _get_run_from_info(self, run_info: Any) -> Any:
        return self._entity(self._run(run_info.run_id))

    def _get_all_metrics(self, run_info: Any) -> Any:
        return self._get_run_from_info(run_info).data._metric_objs

    def _get_all_params(self, run_info: Any) -> Any:
        return [mlflow.Param(*item) for item in self._get_run_from_info(run_info).data.params.items()]

    def _get_all_tags(self, run_info: Any) -> Any:
        return [mlflow.RunTag(*item) for item in self._get_run_from_info(run_info).data.tags.items()]

    def _overwrite_run_info(self, run_info: Any, deleted_time: int | None = None) -> None:
        """Keep the changes of a run's status, end, name and stage."""
        run = self._run(run_info.run_id)
        with _errors_of_mlflow(run.folder):
            about = run.log.state().about
            if run_info.lifecycle_stage != about["lifecycle_stage"]:
                run.change({"lifecycle_stage": run_info.lifecycle_stage, "deleted_time": deleted_time})
                return
            name = self._masked_name(run_info.run_name)
            named = {"run_name": name} if name != about["run_name"] else {}
            run.change({"status": run_info.status, "end_time": run_info.end_time, **named})

    def _set_run_tag(self, run_info: Any, tag: Any) -> None:
        self.set_tag(run_info.run_id, tag)

    def _search_datasets(self, experiment_ids: Any) -> list[Any]:
        context = mlflow_tags.MLFLOW_DATASET_CONTEXT
        found = dict.fromkeys(
            (experiment_id, one["name"], one["digest"], one["tags"].get(context))
            for experiment_id in experiment_ids
            for run in self._runs_of(experiment_id)
            for one in _datasets_of(run.log.state())
        )
        return [mlflow._DatasetSummary(*one) for one in list(found)[:_MOST_DATASETS]]

    # ------------------------------------------------------------ what a run logs

    def log_metric(self, run_id: str, metric: Any) -> None:
        validation._validate_metric(metric.key, metric.value, metric.timestamp, metric.step)
        metric = self._masked_metric(metric)
        points = [_point(metric)]
        with self._active(run_id) as (run, state):
            self._append_metrics(run, state, [metric], points)

    def log_param(self, run_id: str, param: Any) -> None:
        param = validation._validate_param(param.key, param.value)
        with self._active(run_id) as (run, state):
            self._append_params(run, state, [param])

    def set_tag(self, run_id: str, tag: Any) -> None:
        validation._validate_tag_name(tag.key)
        with self._active(run_id) as (run, _):
            self._set_tags(run, [tag])

    def delete_tag(self, run_id: str, key: str) -> None:
        key = self._masked_name(key)
        with self._active(run_id) as (run, state):
            if key not in state.about["tags"]:
                raise _missing(f"No tag with name: {key} in run with id {run_id}")
            run.change({"tags": {key: None}})

    def log_batch(self, run_id: str, metrics: Any, params: Any, tags: Any) -> None:
        metrics, params, tags = validation._validate_batch_log_data(metrics, params, tags)
        validation._validate_batch_log_limits(metrics, params, tags)
        validation._validate_param_keys_unique(params)
        metrics = [*map(self._masked_metric, metrics)]
        points = [*map(_point, metrics)]
        with self._active(run_id) as (run, state):
            self._append_params(run, state, params)
            self._append_metrics(run, state, metrics, points)
            self._set_tags(run, tags)

    def _append_metrics(
        self, run: RunFolder, state: RunState, metrics: Sequence[Any], points: Sequence[Point]
    ) -> None:
        now = time.time()
        if points:
            run.append(step_records(points, now=now, begin=start_s(state.about, now)))
        for metric in metrics:
            if metric.model_id is not None:
                self._log_model_metric(run.experiment_id, metric.model_id, run.run_id, metric)

    def _append_params(self, run: RunFolder, state: RunState, params: Sequence[Any]) -> None:
        new = self._masked_items(params)
        for key, value in new.items():
            known = state.params.get(key, value)
            if known != value:
                raise _invalid(
                    f"Changing param values is not allowed. Param with key='{key}' was already logged with "
                    f"value='{known}' for run ID='{run.run_id}'. Attempted logging new value '{value}'."
                )
        run.log_params({key: value for key, value in new.items() if key not in state.params})

    def _set_tags(self, run: RunFolder, tags: Sequence[Any]) -> None:
        new = self._masked_items(tags)
        if new:
            name = {"run_name": new[_RUN_NAME]} if _RUN_NAME in new else {}
            run.change({**name, "tags": new})

    def get_metric_history(
        self, run_id: str, metric_key: str, max_results: int | None = None, page_token: str | None = None
    ) -> Any:
        validation._validate_metric_name(metric_key)
        path = self._run(run_id).log.path
        history = [_metric(point, run_id) for point in history_in(path, self._masked_name(metric_key))]
        if max_results is None:
            return PagedList(history[SearchUtils.parse_start_offset_from_page_token(page_token) :], None)
        return PagedList(*SearchUtils.paginate(history, page_token, max_results))

    def record_logged_model(self, run_id: str, mlflow_model: Any) -> None:
        from mlflow.models import Model

        if not isinstance(mlflow_model, Model):
            raise TypeError(
                f"Argument 'mlflow_model' should be mlflow.models.Model, got '{type(mlflow_model)}'"
            )
        key = mlflow_tags.MLFLOW_LOGGED_MODELS
        with self._active(run_id) as (run, state):
            models = json.loads(state.about["tags"].get(key, "[]"))
            self._set_tags(run, [mlflow.RunTag(key, json.dumps([*models, mlflow_model.get_tags_dict()]))])

    def log_inputs(self, run_id: str, datasets: Any = None, models: Any = None) -> None:
        new: dict[str, Any] = {}
        for one in datasets or ():
            described: dict[str, Any] = {
                name: None if value is None else self._masked(name, value)
                for name, value in dict(one.dataset).items()
            }
            described["name"] = self._masked_name(one.dataset.name)
            described["tags"] = self._masked_items(one.tags)
            new.setdefault(f"{described['name']}\0{described['digest']}", described)
        with self._active(run_id) as (run, state):
            block = {
                # The first of a name and digest counts.
                "datasets": {key: one for key, one in new.items() if key not in state.about["datasets"]},
                "model_inputs": {model.model_id: True for model in models or ()},
            }
            if any(block.values()):
                run.change(block)

    def log_outputs(self, run_id: str, models: Any) -> None:
        with self._active(run_id) as (run, state):
            known = state.about["model_outputs"]
            new = {model.model_id: model.step for model in models or () if model.model_id not in known}
            if new:
                run.change({"model_outputs": new})

    # ------------------------------------------------------------ folders

    def _run(self, run_id: str) -> RunFolder:
        validation._validate_run_id(run_id)
        run = self._runs.get(run_id)
        if run is None or not _is_readable(run):
            self._runs.pop(run_id, None)
            self._look_for_runs()
            run = self._runs.get(run_id)
            if run is None:
                raise _missing(f"Run '{run_id}' not found")
            if not _is_readable(run):
                raise _missing(f"Run '{run_id}' has no readable start in {run.log.path}")
        return run

    def _runs_of(self, experiment_id: Any) -> list[RunFolder]:
        """Return the runs of an experiment, or of all if it is None."""
        self._look_for_runs()
        runs = [run for run in list(self._runs.values()) if _is_readable(run)]
        return [run for run in runs if experiment_id is None or run.experiment_id == str(experiment_id)]

    def _look_for_runs(self) -> None:
        names = set(os.listdir(self.log_dir))
        self._other_folders &= names
        for run_id, run in list(self._runs.items()):
            if run.folder.name not in names:
                self._runs.pop(run_id, None)
        known = self._other_folders.union(run.folder.name for run in list(self._runs.values()))
        for name in sorted(names - known):
            if name.startswith("."):
                continue
            folder = self.log_dir / name
            try:
                manifest = read_manifest(folder)
            except (OSError, ManifestError):
                # It may be made right now.
                continue
            experiment_id = manifest.other.get(EXPERIMENT)
            if isinstance(experiment_id, str) and validation._RUN_ID_REGEX.match(manifest.run_id):
                # A copy of a run has the same id: the first one counts as long as it is there.
                self._runs.setdefault(manifest.run_id, RunFolder(folder, manifest.run_id, experiment_id))
            else:
                self._other_folders.add(name)

    @contextmanager
    def _active(self, run_id: str) -> Iterator[tuple[RunFolder, RunState]]:
        """Keep others from writing to a run, which must not be deleted."""
        run = self._run(run_id)
        with _errors_of_mlflow(run.folder), run.log.alone() as state:
            if state.about["lifecycle_stage"] != LifecycleStage.ACTIVE:
                check_run_is_active(self._info(run))
            yield run, state

    def _info(self, run: RunFolder) -> Any:
        about = run.log.state().about
        return mlflow.RunInfo(
            run_id=run.run_id,
            experiment_id=run.experiment_id,
            artifact_uri=self._artifact_uri(run),
            **{name: about.get(name) for name in _INFO},
        )

    def _artifact_uri(self, run: RunFolder) -> str:
        """Return where the files of a run are: in its folder, wherever that is, or where its experiment has them.

        Never what its records say: the run may be a stranger's, and `mlflow gc` deletes what is there.
        """
        experiment_id = run.experiment_id
        if experiment_id not in self._locations:
            try:
                location = self.get_experiment(experiment_id).artifact_location
            except MlflowException:
                location = None
            # MLflow keeps the first place of the log directory, which may have been moved.
            is_own = location is None or location.endswith(f"/{OWN_FOLDER}/{experiment_id}")
            self._locations[experiment_id] = None if is_own else location
        place = self._locations[experiment_id]
        if place is None:
            return str((run.folder / self.ARTIFACTS_FOLDER_NAME).as_uri())
        return str(append_to_uri_path(place, run.run_id, self.ARTIFACTS_FOLDER_NAME))

    def _entity(self, run: RunFolder) -> Any:
        state = run.log.state()
        about = state.about
        data = mlflow.RunData(
            metrics=[_metric(point, run.run_id) for point in state.last.values()],
            params=[mlflow.Param(*item) for item in state.params.items()],
            tags=[mlflow.RunTag(key, str(value)) for key, value in about["tags"].items()],
        )
        inputs = mlflow.RunInputs(
            [_dataset_input(one) for one in _datasets_of(state)],
            [mlflow.LoggedModelInput(model_id) for model_id in about["model_inputs"]],
        )
        outputs = [mlflow.LoggedModelOutput(*item) for item in about["model_outputs"].items()]
        return mlflow.Run(self._info(run), data, inputs, mlflow.RunOutputs(outputs))

    def _masked(self, name: str, value: Any) -> str:
        """Return a text for the disk, without secrets; JSON, which MLflow may parse, remains JSON."""
        text = "" if value is None else encodable(str(value))
        tree = _json_in(text)
        if tree is not None and (without := self._masker.mask(tree)) != tree:
            text = json.dumps(without, ensure_ascii=False)
        masked = self._masker.rewrite_text(text, Position(secrecy_of(name), name, name))
        return text if tree is not None and masked != MASK and _json_in(masked) is None else masked

    def _masked_name(self, name: Any) -> str:
        """Return a name for the disk, without secrets; MLflow refuses stars in names."""
        given = encodable(str(name))
        masked = self._masker.mask_name(given)
        return given if masked == given else masked.replace(MASK, "___")

    def _masked_items(self, items: Sequence[Any]) -> dict[str, str]:
        return {self._masked_name(item.key): self._masked(item.key, item.value) for item in items}

    def _masked_entities(self, items: Sequence[Any] | None) -> list[Any]:
        """Return tags or params of MLflow without secrets."""
        name, text = self._masked_name, self._masked
        return [type(item)(name(item.key), text(item.key, item.value)) for item in items or ()]

    def _masked_metric(self, metric: Any) -> Any:
        dataset = metric.dataset_name and self._masked_name(metric.dataset_name)
        masked = {"key": self._masked_name(metric.key), "dataset_name": dataset}
        return mlflow.Metric.from_dictionary({**dict(metric), **masked})


def log_dir_of(uri: str | None) -> Path:
    """Return the folder that `telemetry://FOLDER` names; without one, the logger's own default.

    Raises:
        MlflowException: it names something else.
    """
    parts = urlsplit(uri or "")
    place = unquote(parts.netloc + parts.path)
    if parts.query or parts.fragment or "@" in parts.netloc or ":" in parts.netloc:
        raise _invalid(f"{uri!r} is no folder; allowed is telemetry://FOLDER, such as telemetry://./logs")
    return Path(os.path.abspath(Path(place or TelemetryOptions().log_dir).expanduser()))


def _point(metric: Any) -> Point:
    dataset = (metric.dataset_name, metric.dataset_digest) if metric.dataset_name is not None else None
    step, timestamp = int(metric.step), int(metric.timestamp)
    for name, number in (("step", step), ("timestamp", timestamp)):
        if not -(2**63) <= number < 2**63:
            raise _invalid(f"metric '{metric.key}': {name} must be a 64-bit integer, not {number:.3g}")
    return Point(step, timestamp, float(metric.value), metric.key, dataset, metric.model_id)


def _metric(point: Point, run_id: str) -> Any:
    step, timestamp, value, key, dataset, model_id = point
    return mlflow.Metric(key, value, timestamp, step, model_id, *(dataset or (None, None)), run_id)


def _datasets_of(state: RunState) -> list[dict[str, Any]]:
    """Return the data sets of a run that are whole; anyone may have written its records."""
    given = state.about["datasets"].values()
    return [one for one in given if isinstance(one, dict) and one.keys() >= _DATASET]


def _dataset_input(one: dict[str, Any]) -> Any:
    tags = [mlflow.InputTag(*item) for item in one["tags"].items()]
    return mlflow.DatasetInput(mlflow.Dataset.from_dictionary(one), tags)


def _is_readable(run: RunFolder) -> bool:
    """Return whether the start of a run is in its records, and its files are in its folder.

    A run may be made, removed or damaged by others.
    """
    try:
        about = run.log.state().about
    except OSError:
        return False
    is_begun = all(isinstance(about.get(name), kinds) for name, kinds in _INFO.items())
    return is_begun and not os.path.islink(run.folder / TelemetryStore.ARTIFACTS_FOLDER_NAME)


def _json_in(text: str) -> Any:
    """Return the mapping or list that `text` is in JSON, else None."""
    try:
        return json.loads(text) if text[:1] in ("{", "[") else None
    except (ValueError, RecursionError):
        return None


@contextmanager
def _errors_of_mlflow(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ManifestError) as error:
        raise MlflowException(f"{folder} cannot be written: {error}", INTERNAL_ERROR) from error


def _invalid(message: str) -> Any:
    return MlflowException(message, INVALID_PARAMETER_VALUE)


def _missing(message: str) -> Any:
    return MlflowException(message, RESOURCE_DOES_NOT_EXIST)


_stores: Final[weakref.WeakSet[TelemetryStore]] = weakref.WeakSet()


def _in_forked_child() -> None:
    """Leave the parent's runs and its locks, which another thread may have held, to the parent."""
    run_folder.live.forget()
    for store in list(_stores):
        for run in store._runs.values():
            run.log.forget_in_child()
        store._runs = {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
