"""Sample images and other files: from the run folder into a store, once each, and back on a page and by pull."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec

import pytest

from dashboard import launcher
from dashboard.settings import DashboardSettings, EngineSettings
from tests.fleet.engines import ROOT
from tests.fleet.s3_server import BUCKET, SECRET
from tests.fleet.shipped_runs import append, id_of, make_run, metrics_text, pull, step_line, write
from tests.lengths import in_make_faults, longer
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.core import outbox
from toolkit.telemetry.fleet import objects
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.fleet.objects import MAX_BYTES, ObjectShipper, missing_objects, stored_objects
from toolkit.telemetry.fleet.shipping import sender
from toolkit.telemetry.fleet.shipping.shipper import Shipper
from toolkit.telemetry.fleet.stores import FolderStore, PlaceError, StoreError, store_at
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore
from toolkit.telemetry.runs.store import Refused

PNG = b"\x89PNG" + bytes(range(200))


@pytest.fixture
def shared(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    return FolderStore(folder, is_shared=True)


def sample_line(step, path):
    return step_line(step).replace(b'"event":"step"', b'"event":"sample","path":"%s"' % path.encode())


def add_sample(folder, path, data=PNG, step=0):
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    write(folder, sample_line(step, path))


def ship_with(engine, store, *places, say=None, node=None):
    """Ship what is there now, by a shipper of its own."""
    objects = ObjectShipper(engine.address(), store, say=say)
    started = Shipper(Engine(engine.address()), places, objects=objects, say=say, node=node)
    started.start()
    started.ship_all()
    return started


def stored_of(ask, folder):
    return stored_objects(ask, [id_of(folder)])[id_of(folder)]


def insert_row(ask, run_id, path, sha256, size=1):
    ask.query(
        "INSERT INTO objects (project, run_id, path, sha256, bytes, version, created) VALUES "
        f"('', {quote(run_id)}, {quote(path)}, {quote(sha256)}, {size}, 1, '2026-09-21')"
    )


def test_a_page_and_pull_get_the_files_that_records_point_to(engine, ask, logs, shared, tmp_path):
    first, second = make_run(logs, "one"), make_run(logs, "two")
    for folder in (first, second):
        add_sample(folder, "samples/same.png")
        add_sample(folder, f"samples/{folder.name}/ä b.txt", folder.name.encode())
    shipped = ship_with(engine, shared, logs)
    store, key = ClickHouseStore(engine.address(), objects=shared), id_of(first)

    assert store.read_file(key, "samples/same.png", max_bytes=1000) == PNG
    assert store.read_file(key, "samples/one/ä b.txt", max_bytes=1000) == b"one"
    names = sorted(path.name for path in (shared.folder / "objects").iterdir())
    assert names == sorted(hashlib.sha256(data).hexdigest() for data in (PNG, b"one", b"two"))
    assert shipped.objects.totals.stored == 4
    assert shipped.objects.totals.bytes == len(PNG) + 6
    assert b"telemetry_ship_objects_total 4.0" in metrics_text(shipped)
    assert missing_objects(ask, [key]) == (2, 0)
    with pytest.raises(Refused, match="more than the limit of 10"):
        store.read_file(key, "samples/same.png", max_bytes=10)
    with pytest.raises(Refused, match="was not shipped; it is on"):
        store.read_file(key, "samples/other.png", max_bytes=10)
    with pytest.raises(Refused, match="not a path inside"):
        store.read_file(key, "../two/metrics.jsonl", max_bytes=10)
    with pytest.raises(Refused, match="was not shipped; it is on"):
        ClickHouseStore(engine.address()).read_file(key, "samples/same.png", max_bytes=1000)

    pulled = pull(Engine(engine.address()), key, tmp_path / "back", shared)
    assert (pulled.done.files, pulled.said) == (4, [])
    for path in ("samples/same.png", "samples/one/ä b.txt", "metrics.jsonl", "run.json"):
        assert (pulled.folder / path).read_bytes() == (first / path).read_bytes()

    again = ship_with(engine, shared, logs)
    assert (again.objects.totals.stored, again.objects.totals.bytes) == (0, 0)


def test_a_changed_file_replaces_the_one_before_and_a_lost_one_is_stored_again(engine, ask, logs, shared):
    folder = make_run(logs, "changed")
    add_sample(folder, "latest.png", b"first")
    ship_with(engine, shared, logs)
    before = stored_of(ask, folder)["latest.png"]
    (folder / "latest.png").write_bytes(b"second")
    os.utime(folder / "latest.png", (1, 1))
    write(folder, sample_line(2, "latest.png"))

    shipped = ship_with(engine, shared, logs)

    after = stored_of(ask, folder)["latest.png"]
    assert (shared.folder / after.name).read_bytes() == b"second"
    assert after.version > before.version
    (shared.folder / after.name).unlink()
    shipped.verify()
    shipped.ship_all()
    assert (shared.folder / after.name).read_bytes() == b"second"


def test_an_older_copy_on_another_node_does_not_replace_a_file(engine, ask, logs, shared, tmp_path):
    folder = make_run(logs, "run")
    add_sample(folder, "samples/a.png", step=30)
    copy = shutil.copytree(folder, tmp_path / "copies" / "run")
    append(folder, range(40, 50))
    (copy / "metrics.jsonl").write_bytes(
        (copy / "metrics.jsonl").read_bytes() + sample_line(31, "samples/a.png")
    )
    (copy / "samples" / "a.png").write_bytes(b"another")
    ship_with(engine, shared, logs, node="first")
    said = []

    older = ship_with(engine, shared, copy.parent, node="second", say=said.append)
    older.verify()
    older.objects.ship_all()

    assert any("not shipped" in line for line in said)
    assert stored_of(ask, folder)["samples/a.png"].sha256 == hashlib.sha256(PNG).hexdigest()


def test_content_that_is_missing_or_wrong_is_refused_with_the_reason(engine, ask, logs, shared, tmp_path):
    folder = make_run(logs, "wrong")
    for name in ("gone.png", "wrong.png", "fine.png"):
        add_sample(folder, name, name.encode())
    ship_with(engine, shared, logs)
    rows = stored_of(ask, folder)
    (shared.folder / rows["gone.png"].name).unlink()
    (shared.folder / rows["wrong.png"].name).write_bytes(b"evil.pngx")
    store = ClickHouseStore(engine.address(), objects=shared)

    with pytest.raises(Refused, match=r"gone.png.*has no objects/"):
        store.read_file(id_of(folder), "gone.png", max_bytes=100)
    with pytest.raises(Refused, match=r"wrong.png.*differs from what was shipped"):
        store.read_file(id_of(folder), "wrong.png", max_bytes=100)
    assert store.read_file(id_of(folder), "fine.png", max_bytes=100) == b"fine.png"
    pulled = pull(Engine(engine.address()), id_of(folder), tmp_path / "back", shared)
    assert (pulled.done.missing, len(pulled.said)) == (2, 2)
    assert not (pulled.folder / "wrong.png").exists()


def test_hostile_paths_are_neither_read_nor_written_outside(engine, ask, logs, shared, tmp_path):
    folder = make_run(logs, "hostile")
    (logs / "secret").write_text("secret")
    (folder / "link.png").symlink_to(logs / "secret")
    (folder / "linked").symlink_to(logs)
    for path in ("../secret", "/etc/passwd", "link.png", "linked/secret", "run.json", "a/../../secret", "."):
        write(folder, sample_line(1, path))
    with (folder / "big.bin").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    write(folder, sample_line(1, "big.bin"))
    add_sample(folder, "fine.png")
    said = []

    shipped = ship_with(engine, shared, logs, say=said.append)

    assert list(stored_of(ask, folder)) == ["fine.png"]
    assert not shipped.objects.is_behind
    assert any("more than the limit of 20,000,000" in line for line in said)
    # Rows of someone who may write to the engine: names that lead elsewhere, and hashes that are invalid.
    (shared.folder / "objects" / "x").write_text("not a hash")
    sha256 = hashlib.sha256(PNG).hexdigest()
    paths = (
        "../../x",
        "/tmp/telemetry-x",
        "a/../../x",
        "run.json",
        "metrics.jsonl",
        "ranks/00001.jsonl",
        ".x/y",
    )
    for path in (*paths, "fine.png/below", "x\0y", "a" * 300):
        insert_row(ask, id_of(folder), path, sha256, len(PNG))
    insert_row(ask, id_of(folder), "no-hash", "x")
    insert_row(ask, id_of(folder), "no-hash-either", "../../secret")
    back = tmp_path / "back"
    pulled = pull(Engine(engine.address()), id_of(folder), back, shared)

    found = {str(path.relative_to(back)) for path in back.rglob("[!.]*") if path.is_file()}
    assert found == {f"hostile/{name}" for name in ("metrics.jsonl", "metrics.csv", "run.json", "fine.png")}
    assert (pulled.folder / "run.json").read_bytes() == (folder / "run.json").read_bytes()
    assert (pulled.folder / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    assert pulled.done.missing == 5, pulled.said
    store = ClickHouseStore(engine.address(), objects=shared)
    for path in (*paths, "no-hash", "no-hash-either"):
        with pytest.raises(Refused):
            store.read_file(id_of(folder), path, max_bytes=100)


@pytest.mark.parametrize(
    ("place", "endpoint", "reason"),
    [
        ("ftp://x/y", None, "is not a place for files"),
        ("s3://", None, "is not s3://BUCKET/PREFIX"),
        ("s3://b", None, "is not s3://BUCKET/PREFIX"),
        ("s3://bucket/../x", None, "is not s3://BUCKET/PREFIX"),
        (f"s3://key:{SECRET}@bucket/x", None, "must not contain a login"),
        ("s3://bucket", "http://s3.example", "must be https"),
        ("s3://bucket", f"https://me:{SECRET}@s3.example", "must not contain a login"),
        ("s3://bucket", "s3.example:9000", "has the form https://HOST:PORT"),
        ("s3://bucket", "https://[::", "has the form https://HOST:PORT"),
        ("file://folder/x", None, "with three slashes"),
        ("file:///a/../b", None, "with three slashes"),
    ],
)
def test_an_invalid_place_is_one_sentence_without_a_secret(place, endpoint, reason, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with pytest.raises(PlaceError, match=reason) as caught:
        store_at(place, endpoint)
    assert SECRET not in str(caught.value)


def test_a_dashboard_that_cannot_use_the_place_says_why(capsys):
    with pytest.raises(SystemExit):
        launcher.parse_options(["--objects", "s3://bucket"])
    assert "--objects and --objects-endpoint need --store" in capsys.readouterr().err
    store = ["--store", "clickhouse://127.0.0.1:1/telemetry"]
    for place, reason in (("s4://bucket", "use s3://BUCKET/PREFIX"), ("file://x", "with three slashes")):
        with pytest.raises(launcher.LaunchError, match=f"--objects: .*{reason}"):
            launcher.prepare(launcher.parse_options([*store, "--objects", place]))
    endpoint = "https://s3.example:9000"
    chosen = launcher.parse_options(
        [*store, "--objects", "s3://b-1/x", "--objects-endpoint", endpoint]
    ).settings
    assert DashboardSettings.from_environment(chosen.to_environment()).engines == chosen.engines
    (engine,) = chosen.engines
    assert (engine.objects, engine.objects_endpoint) == ("s3://b-1/x", endpoint)
    assert launcher.parse_options([*store, "--objects", "none"]).settings.engines[0].objects is None


@in_make_faults
@pytest.mark.skipif(find_spec("streamlit") is None, reason="streamlit is not installed")
def test_the_samples_page_shows_the_images_of_a_run_on_the_engine(engine, logs, shared, monkeypatch):
    from PIL import Image

    from dashboard import session
    from tests.dashboard.views.pages import is_well, open_page
    from tests.dashboard.views.test_samples_page import get, samples_of

    image = io.BytesIO()
    Image.new("RGB", (300, 300), (200, 30, 30)).save(image, "PNG")
    folder = make_run(logs, "pictures")
    add_sample(folder, "samples/red.png", image.getvalue())
    add_sample(folder, "samples/words.txt", b"what the model said")
    add_sample(folder, "samples/gone.png")
    (folder / "samples" / "gone.png").unlink()
    ship_with(engine, shared, logs)
    settings = DashboardSettings(
        engines=(EngineSettings(url=str(engine.address()), objects=f"file://{shared.folder}"),)
    )
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    session._store.clear()
    try:
        tab = open_page("samples", id_of(folder))
        assert is_well(tab)
        [column] = samples_of(tab)["columns"]
        query = column["url"].partition("?")[2]
        shown, text, gone = (
            get(f"{query}&path=samples%2F{name}".encode()) for name in ("red.png", "words.txt", "gone.png")
        )
        assert (shown.status_code, shown.media_type, bytes(shown.body)) == (
            200,
            "image/png",
            image.getvalue(),
        )
        assert b"what the model said" in text.body
        assert gone.status_code == 404
    finally:
        session._store.clear()


def test_a_folder_that_is_not_mounted_is_waited_for(engine, logs, shared, monkeypatch):
    monkeypatch.setattr(outbox, "FIRST_S", 0.0)
    folder = make_run(logs, "unmounted")
    add_sample(folder, "a.png")
    shared.folder.rmdir()
    said = []
    shipped = ship_with(engine, shared, logs, say=said.append)

    assert shipped.objects.totals.waiting == 1
    assert shipped.objects.is_behind
    assert shipped.behind == 0
    assert shipped.objects.totals.last_error == said[-1]
    assert said[-1] == f"the folder {shared.folder} is missing; make or mount it"
    assert said[-1] in shipped.sender.last_error
    shared.folder.mkdir()
    shipped.objects.ship_all()
    assert (shipped.objects.is_behind, shipped.objects.totals.last_error) == (False, "")
    assert (shared.folder / "objects").is_dir()


def test_files_on_s3_from_the_command_to_the_page(engine, s3, logs, tmp_path, monkeypatch, capsys):
    folder, other = make_run(logs, "on-s3"), make_run(logs, "also-on-s3")
    for each in (folder, other):
        add_sample(each, "samples/a.png")
    place = f"s3://{BUCKET}/team/x"
    files = ["--objects", place]
    address = str(engine.address())
    for name, value in s3.keys("ship").items():
        monkeypatch.setenv(name, value)

    assert main(["ship", str(logs), "--to", address, "--once", *files]) == 0

    assert "2 other files stored, 0 wait" in capsys.readouterr().out
    assert s3.names("team") == [f"{BUCKET}/team/x/objects/{hashlib.sha256(PNG).hexdigest()}"]
    assert main(["ship", str(logs), "--to", address, "--status"]) == 0
    assert "2 files that shipped records point to, 0 of them not stored" in capsys.readouterr().out
    for name, value in s3.keys("page").items():
        monkeypatch.setenv(name, value)
    reads = store_at(place)
    store = ClickHouseStore(engine.address(), objects=reads)
    assert store.read_file(id_of(folder), "samples/a.png", max_bytes=1000) == PNG
    with pytest.raises(
        StoreError, match=r"refused the key, or does not allow it to do this \(ACCESS_DENIED\)"
    ):
        reads.write("objects/x", io.BytesIO(b"x"))
    back = tmp_path / "back"
    assert main(["copy", id_of(folder), "--from", address, "--to", str(back), *files]) == 0
    assert (back / "on-s3" / "samples" / "a.png").read_bytes() == PNG
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-" + SECRET)
    assert main(["copy", id_of(other), "--from", address, "--to", str(back), *files]) == 2
    said = capsys.readouterr()
    assert "refused the key" in said.err
    assert SECRET not in said.out + said.err


def committed(ask, folder):
    rows = ask.rows(f"SELECT end FROM commits WHERE run_id = {quote(id_of(folder))}", "UInt64")
    return max((end for (end,) in rows), default=0)


@in_make_faults
def test_with_s3_down_records_are_shipped_and_files_follow(engine, ask, s3, logs, monkeypatch):
    monkeypatch.setattr(outbox, "LONGEST_S", 1.0)
    monkeypatch.setattr(sender, "EVERY_S", 0.1)
    monkeypatch.setattr(objects, "EVERY_S", 0.1)
    for name, value in s3.keys("ship").items():
        monkeypatch.setenv(name, value)
    folder = make_run(logs, "down")
    store = ObjectShipper(engine.address(), store_at(f"s3://{BUCKET}/down"))
    running = Shipper(Engine(engine.address()), [logs], objects=store)
    running.start()
    stop = threading.Event()
    thread = threading.Thread(target=running.run, args=(stop,))
    thread.start()
    try:
        add_sample(folder, "samples/before.png", b"before")
        wait_until(lambda: "samples/before.png" in stored_of(ask, folder))
        for number, how in enumerate((signal.SIGKILL, signal.SIGSTOP)):
            name = f"samples/{number}.png"
            s3.process.send_signal(how)
            add_sample(folder, name, b"%d" % number)
            size = (folder / "metrics.jsonl").stat().st_size
            wait_until(lambda size=size: committed(ask, folder) == size)
            if how == signal.SIGKILL:
                wait_until(lambda: "cannot be reached" in store.totals.last_error)
                assert SECRET not in store.totals.last_error
                s3.process.wait()
                s3.start()
            else:
                assert name not in stored_of(ask, folder)
                s3.process.send_signal(signal.SIGCONT)
            wait_until(lambda name=name: name in stored_of(ask, folder))
        wait_until(lambda: store.totals.last_error == "")
    finally:
        stop.set()
        thread.join()
        if s3.process.poll() is not None:
            s3.start()


@in_make_faults
def test_killed_while_storing_nothing_is_missing_or_there_twice(engine, ask, s3, logs):
    folder = make_run(logs, "killed")
    count = 40
    for number in range(count):
        add_sample(folder, f"samples/{number}.png", b"%d" % number * 50_000)
    environment = {**os.environ, **s3.keys("ship")}
    address = str(engine.address())
    command = [sys.executable, "-m", "tests.fleet.storing_child", address, str(logs), f"s3://{BUCKET}/killed"]
    kills = longer(1, 12)
    for seed in range(kills):
        child = subprocess.Popen([*command, str(seed)], cwd=ROOT, env=environment)
        # It kills itself before or after a file was stored, or before its row.
        assert child.wait() in (-signal.SIGKILL, 0)
    done = subprocess.run([*command, "-1"], cwd=ROOT, env=environment, timeout=120)
    assert done.returncode == 0
    rows = stored_of(ask, folder)
    assert sorted(rows) == sorted(f"samples/{number}.png" for number in range(count))
    hashes = [hashlib.sha256(b"%d" % number * 50_000).hexdigest() for number in range(count)]
    assert s3.names("killed") == sorted(f"{BUCKET}/killed/objects/{sha256}" for sha256 in hashes)
    written = ask.rows(
        f"SELECT path, version FROM objects WHERE run_id = {quote(id_of(folder))} GROUP BY path, version",
        *("String", "UInt64"),
    )
    assert len(written) == count
