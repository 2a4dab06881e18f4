"""Uses MLflow with our store: ten scripts next to MLflow's file store, several writers, kills, and odd input.

Arguments: a folder, and at which calls to kill. MLFLOW_TRACKING_URI names our store. Prints what was found as JSON.
"""

import json
import math
import os
import resource
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path

import mlflow
import numpy as np
from mlflow.cli import cli
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunStatus, RunTag, ViewType

from toolkit.telemetry.compat.mlflow_store.store import TelemetryStore
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.environment import describe_environment

FOLDER, PLACES = Path(sys.argv[1]), [int(place) for place in sys.argv[2:]]
OURS = os.environ["MLFLOW_TRACKING_URI"]
NAMES = (
    "params metrics_with_history tags nested resumed one_batch_of_everything artifacts datasets odd_numbers unicode"
).split()
FIRST_MS = 1_700_000_000_000


# ------------------------------------------------------------ ten scripts


def params(client):
    with mlflow.start_run(run_name="params"):
        mlflow.log_params({"lr": 3e-4, "optimizer": "adamw", "layers": [1, 2], "empty": "", "none": None})
        mlflow.log_param("a.b/c d-e_f", "x\ny")
        mlflow.log_param("lr", 3e-4)
        mlflow.log_params({f"many/{number}": "v" * 500 for number in range(90)})
        try:
            mlflow.log_param("lr", 1)
        except mlflow.MlflowException as error:
            mlflow.set_tag("refused", error.error_code)


def metrics_with_history(client):
    with mlflow.start_run(run_name="history") as run:
        for step in range(20):
            client.log_metric(run.info.run_id, "loss", 1 / (step + 1), timestamp=FIRST_MS + step, step=step)
        for step in (5, 5, 3, 21, -2, 2**40):
            client.log_metric(run.info.run_id, "loss", step / 7, timestamp=FIRST_MS, step=step)
        for name in (
            "time",
            "x_time",
            "seq",
            "global_step",
            "epoch",
            "event",
            "mlflow",
            "x_x_rank",
            "a/b",
            "a b",
        ):
            client.log_metric(run.info.run_id, name, 0.1 + 0.2, timestamp=40, step=1)


def tags(client):
    with mlflow.start_run(run_name="tags", tags={"first": "1"}, description="what it is"):
        mlflow.set_tags({"a": 1, "b": None, "long": "l" * 4_000})
        mlflow.set_tag("a", "2")
        mlflow.delete_tag("b")
        mlflow.set_tag("mlflow.runName", "renamed")


def nested(client):
    with mlflow.start_run(run_name="outer"):
        for number in range(3):
            with mlflow.start_run(run_name=f"inner {number}", nested=True):
                mlflow.log_metric("score", number)
        try:
            with mlflow.start_run(run_name="broken", nested=True):
                raise ValueError("as asked")
        except ValueError:
            pass


def resumed(client):
    with mlflow.start_run(run_name="resumed") as run:
        mlflow.log_metric("loss", 1.0, step=1)
    with mlflow.start_run(run_id=run.info.run_id):
        mlflow.log_metric("loss", 0.5, step=2)
        mlflow.log_param("late", True)
    client.set_terminated(run.info.run_id, "KILLED", end_time=FIRST_MS)
    client.log_metric(run.info.run_id, "after", 7)


def one_batch_of_everything(client):
    run = client.create_run("0", start_time=5, run_name="batch")
    metrics = [
        Metric(f"m{number % 40}", number / 3, FIRST_MS + number // 40, number // 80) for number in range(900)
    ]
    batch = [Param(f"p{number}", str(number)) for number in range(50)]
    client.log_batch(
        run.info.run_id, metrics, batch, [RunTag(f"t{number}", str(number)) for number in range(50)]
    )
    client.update_run(run.info.run_id, status="FINISHED", name="batch 2")
    for number in range(3):
        other = client.create_run("0", run_name=f"deleted {number}")
        client.delete_run(other.info.run_id)
        if number == 1:
            client.restore_run(other.info.run_id)


def artifacts(client):
    with mlflow.start_run(run_name="artifacts"):
        mlflow.log_text("hello", "notes/hello.txt")
        mlflow.log_dict({"a": [1, 2]}, "config.json")
        mlflow.log_image(np.zeros((4, 4, 3), np.uint8), "black.png")


def datasets(client):
    with mlflow.start_run(run_name="datasets") as run:
        for name, context in (("train", "training"), ("test", "testing"), ("train", "again")):
            dataset = Dataset(
                name, f"digest-{name}", "local", "s3://bucket/x", schema="s" * 60_000, profile="p"
            )
            given = DatasetInput(dataset, [InputTag("mlflow.data.context", context)])
            client.log_inputs(run.info.run_id, [given])


def odd_numbers(client):
    with mlflow.start_run(run_name="odd numbers") as run:
        for number in (
            math.nan,
            math.inf,
            -math.inf,
            0.0,
            -0.0,
            1e-320,
            1.7e308,
            2**60,
            True,
            np.float32(0.1),
        ):
            client.log_metric(run.info.run_id, "odd", number, timestamp=FIRST_MS, step=3)
        mlflow.log_metrics({"nan": math.nan, "fine": 1.0})


def unicode(client):
    mlflow.set_experiment("größe 😀")
    with mlflow.start_run(run_name="пуск 😀/../ü"):
        mlflow.log_params({"ключ": "значение", "emoji": "😀\u2028end"})
        mlflow.log_metric("точность", 0.5)
        mlflow.set_tag("ü", "ß\x00ß")


def seen(client):
    """What a client finds, without what differs between two stores by itself."""
    found = {}
    experiments = client.search_experiments(view_type=ViewType.ALL)
    runs = client.search_runs(
        [one.experiment_id for one in experiments], "", ViewType.ALL, order_by=["start_time ASC"]
    )
    names = {run.info.run_id: run.info.run_name for run in runs}
    for run in runs:
        info, data = run.info, run.data
        history = {
            key: [
                (
                    repr(float(one.value)),
                    one.step,
                    one.timestamp if one.timestamp < FIRST_MS + 10_000 else "now",
                )
                for one in client.get_metric_history(info.run_id, key)
            ]
            for key in data.metrics
        }
        texts = {key: names.get(value, value) for key, value in data.tags.items()}
        found[info.run_name] = {
            "status": info.status,
            "stage": info.lifecycle_stage,
            "user": info.user_id,
            "ended": info.end_time if info.end_time in (None, FIRST_MS) else "now",
            "params": data.params,
            "tags": texts,
            "last": {key: repr(float(value)) for key, value in data.metrics.items()},
            "history": history,
            "datasets": sorted(
                (repr(dict(one.dataset)), repr([dict(tag) for tag in one.tags]))
                for one in run.inputs.dataset_inputs
            ),
            "artifacts": sorted(
                (one.path, one.file_size)
                for at in ("", "notes")
                for one in client.list_artifacts(info.run_id, at)
            ),
        }
    low = client.search_runs(["0"], "metrics.loss < 0.6 and params.late = 'True'")
    pages, token = [], ""
    while token is not None:
        page = client.search_runs(
            ["0"], order_by=["metrics.score DESC", "attributes.run_name"], max_results=4, page_token=token
        )
        pages, token = [*pages, [run.info.run_name for run in page]], page.token
    return {
        "runs": found,
        "low": [run.info.run_name for run in low],
        "pages": pages,
        "experiments": len(experiments),
    }


# ------------------------------------------------------------ several writers, kills


def in_child(work):
    """Run `work` in a forked child; return its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    return pid


def several_writers(client):
    with mlflow.start_run(run_name="several writers") as run:
        run_id = run.info.run_id

        def write(number):
            for step in range(100):
                client.log_metric(run_id, f"of/{number}", step, step=step)
            client.set_tag(run_id, f"writer {number}", "done")

        children = [in_child(lambda number=number: write(number)) for number in range(3)]
        write(3)
        codes = [os.waitpid(pid, 0)[1] for pid in children]
    counts = [len(client.get_metric_history(run_id, f"of/{number}")) for number in range(4)]
    return {"codes": codes, "counts": counts, "run_id": run_id}


def kill_at(place, log_dir, reported):
    """Die by SIGKILL at the `place`th call of those that change files, in the middle of it if it writes."""
    left = place
    real = {name: getattr(os, name) for name in ("write", "rename", "replace", "mkdir", "open", "fsync")}

    def stand_in(name):
        def call(*arguments, **options):
            nonlocal left
            is_read = name == "open" and not arguments[1] & (os.O_WRONLY | os.O_RDWR)
            left -= not is_read
            if left < 0:
                if name == "write":
                    real["write"](arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real[name](*arguments, **options)

        return call

    client = mlflow.MlflowClient(f"telemetry://{log_dir}")
    if reported is not None:
        run_id = client.create_run("0", run_name=f"killed {place}").info.run_id
        real["write"](reported, f"{run_id}\n".encode())
    for name in real:
        setattr(os, name, stand_in(name))
    if reported is None:
        client.create_run("0", run_name=f"begun {place}")
        return
    for number in range(1_000):
        batch = [Metric(f"b{key}", float(number), FIRST_MS + number, number) for key in range(3)]
        calls = (
            ("metric", lambda number=number: client.log_metric(run_id, "loss", float(number), step=number)),
            ("param", lambda number=number: client.log_param(run_id, f"p{number}", number)),
            ("tag", lambda number=number: client.set_tag(run_id, "last", str(number))),
            (
                "batch",
                lambda number=number, batch=batch: client.log_batch(
                    run_id, batch, [Param(f"q{number}", "1")]
                ),
            ),
            ("end", lambda: client.set_terminated(run_id)),
            (
                "again",
                lambda: client._tracking_client.store.update_run_info(run_id, RunStatus.RUNNING, None, None),
            ),
        )
        for name, call in calls:
            call()
            real["write"](reported, f"{name} {number}\n".encode())


def kill_creations(log_dir):
    """Kill children in the middle of `create_run`; return folders with records and no run.json, and how many live."""
    for place in range(1_000):
        pid = in_child(lambda place=place: kill_at(place, log_dir, None))
        if os.waitpid(pid, 0)[1] == 0:
            break
    without = [
        one.parent.name for one in log_dir.glob("*/metrics.jsonl") if not (one.parent / "run.json").exists()
    ]
    found = mlflow.MlflowClient(f"telemetry://{log_dir}").search_runs(["0"])
    return {"places": place, "without": without, "found": [run.data.tags for run in found]}


def kill_with_lock(client, run_id):
    """Kill a process whose thread has the run locked while a child that it forked lives on; then log."""
    reading, writing = os.pipe()
    waiting, kept_open = os.pipe()

    def fork_and_die():
        os.close(kept_open)
        inside = threading.Event()
        log = client._tracking_client.store._run(run_id).log

        def hold():
            with log.alone():
                inside.set()
                threading.Event().wait()

        threading.Thread(target=hold, daemon=True).start()
        inside.wait()
        in_child(lambda: os.read(waiting, 1))
        os.write(writing, b"x")
        os.kill(os.getpid(), signal.SIGKILL)

    pid = in_child(fork_and_die)
    os.close(writing)
    os.read(reading, 1)
    os.waitpid(pid, 0)
    client.log_metric(run_id, "after the kill", 1.0)
    os.close(kept_open)


def kill(place, log_dir):
    """Kill a child there; return what was acknowledged and is missing, and whether the run goes on."""
    reading, writing = os.pipe()
    pid = in_child(lambda: kill_at(place, log_dir, writing))
    os.close(writing)
    with os.fdopen(reading) as reported:
        run_id, *acknowledged = reported.read().splitlines()
    _, how = os.waitpid(pid, 0)
    store = TelemetryStore(f"telemetry://{log_dir}")
    run = store.get_run(run_id)
    steps = {
        name: [one.step for one in store.get_metric_history(run_id, name)]
        for name in ("loss", "b0", "b1", "b2")
    }
    missing = []
    for line in acknowledged:
        name, number = line.split()
        is_there = {
            "metric": lambda number=int(number): number in steps["loss"],
            "param": lambda number=number: run.data.params.get(f"p{number}") == number,
            "tag": lambda number=number: int(run.data.tags.get("last", -1)) >= int(number),
            "batch": lambda number=int(number): (
                all(number in steps[b] for b in ("b0", "b1", "b2"))
                and run.data.params.get(f"q{number}") == "1"
            ),
        }.get(name)
        if is_there is not None and not is_there():
            missing.append(line)
    last = acknowledged[-1].split()[0] if acknowledged else ""
    if last in ("metric", "param", "tag", "again") and run.info.status != "RUNNING":
        missing.append(f"status {run.info.status} after {last}")
    store.update_run_info(run_id, RunStatus.RUNNING, None, None)
    store.log_metric(run_id, Metric("loss", -1.0, FIRST_MS, -1))
    store.update_run_info(run_id, RunStatus.FINISHED, None, None)
    again = [one.step for one in TelemetryStore(f"telemetry://{log_dir}").get_metric_history(run_id, "loss")]
    return {
        "run_id": run_id,
        "signal": os.WTERMSIG(how) if os.WIFSIGNALED(how) else how,
        "acknowledged": len(acknowledged),
        "missing": missing,
        "continued": again == [*steps["loss"], -1],
    }


# ------------------------------------------------------------ odd input


def refusal(call):
    try:
        return f"not refused: {call()}"
    except mlflow.MlflowException as error:
        return str(error)


def odd_input(log_dir):
    """What comes of input that no script means, and of folders that others made."""
    (log_dir / "ours").mkdir(parents=True)
    (log_dir / "ours" / "run.json").write_text('{"run_id": "x", "name": "ours"}')
    uri = f"telemetry://{log_dir}"
    client = mlflow.MlflowClient(uri)
    run_id = client.create_run("0", run_name="n" * 2_000_000).info.run_id
    client.set_tag(run_id, "k" * 2_000_000, "lone \ud800")
    client.log_metric(run_id, "loss", 1.0, step=2**63 - 1)
    huge = refusal(lambda: client.log_batch(run_id, [Metric("loss", 1.0, 1, 2**64)], [Param("p", "1")]))
    damaged = client.create_run("0", run_name="damaged").info.run_id
    lines = ('{"event":"step","time":"x"', '{"event":"mlflow","time":1,"seq":1,"mlflow":{"tags":3}}')
    (log_dir / "damaged" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    removed = client.create_run("0", run_name="removed").info.run_id
    (log_dir / "removed" / "metrics.jsonl").unlink()
    folder = client._tracking_client.store._run(run_id).folder
    # Not all files: the heartbeat may write one now.
    shutil.copytree(folder / "mlflow", log_dir / "zz-copy" / "mlflow")
    for name in ("run.json", "metrics.jsonl"):
        shutil.copy(folder / name, log_dir / "zz-copy")
    for number in range(3):
        client.search_runs(["0"])
        client.log_metric(run_id, "loss", 0.5, step=number)
    fresh = TelemetryStore(uri)
    found = fresh.search_runs(["0"], "", ViewType.ACTIVE_ONLY)
    (log_dir / "file").write_text("")

    def on_a_full_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        calls = (
            lambda: client.create_run("0", run_name="full"),
            lambda: client.log_metric(run_id, "loss", 1.0),
            lambda: client.update_run(run_id, status="FAILED"),
            lambda: client.delete_run(run_id),
        )
        for call in calls:
            assert "File too large" in refusal(call)

    _, full = os.waitpid(in_child(on_a_full_disk), 0)
    folders = sorted(one.name[:10] for one in log_dir.iterdir())
    moved = log_dir / "moved"
    shutil.copytree(log_dir / ".mlflow", moved / ".mlflow")
    moved_run = mlflow.MlflowClient(f"telemetry://{moved}").create_run("0", run_name="new")
    return {
        "moved": moved_run.info.artifact_uri == (moved / "new" / "artifacts").as_uri(),
        "found": [(len(run.info.run_name), sorted(map(len, run.data.tags.values()))) for run in found],
        "params": fresh.get_run(run_id).data.params,
        "steps": [one.step for one in fresh.get_metric_history(run_id, "loss")],
        "folder": folder.name,
        "full": full,
        "folders": folders,
        "refused": {
            "huge": huge,
            "damaged": refusal(lambda: client.log_metric(damaged, "loss", 1.0)),
            "removed": refusal(lambda: client.log_metric(removed, "loss", 1.0)),
            "file": refusal(lambda: mlflow.MlflowClient(f"{uri}/file")),
        },
    }


def strangers_run(place):
    """What `mlflow gc` leaves of a folder that the records of a downloaded run, or a link in it, name as its files."""
    theirs = place / "theirs"
    theirs.mkdir(parents=True)
    (theirs / "file").write_text("")
    uri = f"telemetry://{place}/logs"
    client = mlflow.MlflowClient(uri)
    for name in ("named", "linked", "renamed"):
        client.delete_run(client.create_run("0", run_name=name).info.run_id)
        at = place / "logs" / name / "metrics.jsonl"
        block = {"event": "mlflow", "time": 1.0, "seq": 9, "mlflow": {"artifact_uri": theirs.as_uri()}}
        at.write_text(at.read_text() + json.dumps(block) + "\n")
    (place / "logs" / "linked" / "artifacts").symlink_to(theirs)
    manifest = json.loads((place / "logs" / "renamed" / "run.json").read_text())
    (place / "logs" / "renamed" / "run.json").write_text(json.dumps({**manifest, "run_id": "../../theirs"}))
    # Another address of it: MLflow keeps the store of the first one.
    client = mlflow.MlflowClient(f"{uri}/")
    runs = client.search_runs(["0"], "", ViewType.ALL)
    listed = [one.path for run in runs for one in client.list_artifacts(run.info.run_id)]
    cli(["gc", "--backend-store-uri", uri, "--tracking-uri", uri], standalone_mode=False)
    return {"runs": [run.info.run_name for run in runs], "listed": listed, "left": os.listdir(theirs)}


def secrets(client):
    """Log secrets at every place that has a name or a text; return what is found by the names as they were given."""
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    mlflow.set_experiment(f"of {token}")
    found = mlflow.set_experiment(f"of {token}")
    client.set_experiment_tag(found.experiment_id, token, token)
    client.set_experiment_tag(found.experiment_id, "api_key", "abc-not-random")
    schema = json.dumps({"mlflow_colspec": [{"name": token}], "password": "abc-not-random"})
    with mlflow.start_run(run_name="secrets") as run:
        run_id = run.info.run_id
        mlflow.log_param("api_key", "abc-not-random")
        mlflow.log_param("url", "https://user:pass-word@example.org/x")
        mlflow.log_metric(f"loss/{token}", 0.5)
        mlflow.set_tag(token, token)
        tags = [InputTag("password", "abc-not-random"), InputTag(token, token)]
        dataset = Dataset(f"of {token}", "12ab", "local", schema, schema=schema, profile=schema)
        client.log_inputs(run_id, [DatasetInput(dataset, tags)])
    client.create_logged_model(
        found.experiment_id, "model", tags={"api_key": "abc-not-random"}, params={token: token}
    )
    one = client.get_run(run_id).inputs.dataset_inputs[0].dataset
    return {
        "values": [one.value for one in client.get_metric_history(run_id, f"loss/{token}")],
        "json": [sorted(json.loads(text)) for text in (one.source, one.schema, one.profile)],
        "folder": client._tracking_client.store._run(run_id).folder.name,
    }


def main():
    # A child must not begin while another thread imports what it needs.
    describe_environment(Guard())
    kills = [kill(place, FOLDER / "killed") for place in PLACES]
    creations = kill_creations(FOLDER / "creations")
    stores = {"ours": OURS, "theirs": (FOLDER / "mlruns").as_uri()}
    found = {
        "kills": kills,
        "creations": creations,
        "odd": odd_input(FOLDER / "odd"),
        "stranger": strangers_run(FOLDER / "stranger"),
        "plugin": type(mlflow.MlflowClient()._tracking_client.store).__name__,
    }
    for name, uri in stores.items():
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment(experiment_id="0")
        client = mlflow.MlflowClient()
        for script in NAMES:
            globals()[script](client)
        found[name] = seen(client)
    mlflow.set_tracking_uri(OURS)
    mlflow.set_experiment(experiment_id="0")
    client = mlflow.MlflowClient()
    found["writers"] = several_writers(client)
    kill_with_lock(client, found["writers"]["run_id"])
    found["secrets"] = secrets(client)
    try:
        mlflow.MlflowClient("telemetry://me@host:9000/x").search_experiments()
    except mlflow.MlflowException as error:
        found["bad uri"] = str(error)
    print(json.dumps(found))


main()
