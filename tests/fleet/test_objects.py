"""Sample images and other files: from the run folder into a store, once each, and back on a page and by pull."""

from __future__ import annotations

import io
import shutil
import signal
import threading
from importlib.util import find_spec

import pytest

from dashboard import launcher
from dashboard.settings import DashboardSettings, EngineSettings
from tests.fleet.s3_server import BUCKET, SECRET
from tests.fleet.shipped_runs import append, begin_shipping, id_of, make_run, pull, ship, step_line, write
from tests.lengths import in_make_faults
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.core import outbox
from toolkit.telemetry.fleet import objects
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.fleet.engine_runs import EngineRuns
from toolkit.telemetry.fleet.objects import ObjectShipper
from toolkit.telemetry.fleet.run_folders import MAX_BYTES
from toolkit.telemetry.fleet.shipping import sender
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
    return ship(engine, *places, objects=ObjectShipper(store, say=say), say=say, node=node)


def stored(shared, folder):
    """Return the files of a run in the store."""
    place = shared.folder / id_of(folder)
    return {
        path.relative_to(place).as_posix(): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and path.name != ".copy"
    }


def test_a_page_and_pull_get_the_files_of_a_run(engine, logs, shared, tmp_path):
    first, second = make_run(logs, "one"), make_run(logs, "two")
    for folder in (first, second):
        add_sample(folder, "samples/same.png")
        add_sample(folder, f"samples/{folder.name}/ä b.txt", folder.name.encode())
    shipped = ship_with(engine, shared, logs)
    store, key = ClickHouseStore(engine.address(), objects=shared), id_of(first)

    assert store.read_file(key, "samples/same.png", max_bytes=1000) == PNG
    assert store.read_file(key, "samples/one/ä b.txt", max_bytes=1000) == b"one"
    assert stored(shared, first) == {"samples/same.png": PNG, "samples/one/ä b.txt": b"one"}
    assert shipped.objects.totals.stored == 4
    with pytest.raises(Refused, match="larger than 10 bytes"):
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
    assert EngineRuns(Engine(engine.address()), [key]).left_out == 2

    again = ship_with(engine, shared, logs)
    assert again.objects.totals.stored == 0


def test_a_changed_file_replaces_the_one_before_and_a_lost_one_is_stored_again(engine, logs, shared):
    folder = make_run(logs, "changed")
    add_sample(folder, "latest.png", b"first")
    shipped = ship_with(engine, shared, logs)
    (folder / "latest.png").write_bytes(b"second")
    write(folder, sample_line(2, "latest.png"))

    shipped.ship_all()

    assert stored(shared, folder) == {"latest.png": b"second"}
    (shared.folder / id_of(folder) / "latest.png").unlink()
    shipped.verify()
    shipped.ship_all()
    assert stored(shared, folder) == {"latest.png": b"second"}


def test_an_older_copy_on_another_node_does_not_replace_a_file(engine, logs, shared, tmp_path):
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
    assert stored(shared, folder) == {"samples/a.png": PNG}


def test_hostile_paths_are_neither_read_nor_written_outside(engine, logs, shared, tmp_path):
    folder = make_run(logs, "hostile")
    (logs / "secret").write_text("secret")
    (folder / "link.png").symlink_to(logs / "secret")
    (folder / "linked").symlink_to(logs)
    for path in ("../secret", "/etc/passwd", "link.png", "linked/secret", "run.json", "a/../../secret", "."):
        write(folder, sample_line(1, path))
    with (folder / "big.bin").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    for path in ("code/1/train.py", "output.log", "tensorboard/events", "samples/.hidden"):
        add_sample(folder, path)
    add_sample(folder, "fine.png")
    odd = make_run(logs, "odd", run_id="../" + "x" * 30)
    add_sample(odd, "fine.png")

    shipped = ship_with(engine, shared, logs)

    assert stored(shared, folder) == {"fine.png": PNG}
    assert not shipped.objects.is_behind
    assert [path.name for path in shared.folder.iterdir()] == [id_of(folder)]
    # Of someone who may write to the store: what a run writes itself does not come from there.
    for path in ("run.json", "metrics.jsonl", "ranks/00001.jsonl", ".x/y"):
        place = shared.folder / id_of(folder) / path
        place.parent.mkdir(exist_ok=True)
        place.write_text("hostile")
    (shared.folder / id_of(folder) / "out.png").symlink_to(logs / "secret")
    back = tmp_path / "back"
    pulled = pull(Engine(engine.address()), id_of(folder), back, shared)

    found = {str(path.relative_to(back)) for path in back.rglob("[!.]*") if path.is_file()}
    assert found == {f"hostile/{name}" for name in ("metrics.jsonl", "metrics.csv", "run.json", "fine.png")}
    assert (pulled.folder / "run.json").read_bytes() == (folder / "run.json").read_bytes()
    assert (pulled.folder / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    store = ClickHouseStore(engine.address(), objects=shared)
    for run, path in ((folder, "../../x"), (folder, "/etc/passwd"), (folder, "out.png"), (odd, "fine.png")):
        with pytest.raises(Refused):
            store.read_file(id_of(run), path, max_bytes=100)


@pytest.mark.parametrize(
    ("place", "endpoint", "reason"),
    [
        ("ftp://x/y", None, "is not a place for files"),
        ("s3://", None, "is not s3://BUCKET/PREFIX"),
        ("s3://b", None, "is not s3://BUCKET/PREFIX"),
        ("s3://bucket/../x", None, "is not s3://BUCKET/PREFIX"),
        (f"s3://key:{SECRET}@bucket/x", None, "must not contain a login"),
        ("s3://bucket", "http://s3.example", "only this machine may do without TLS"),
        ("s3://bucket", f"https://me:{SECRET}@s3.example", "must not contain a login"),
        ("s3://bucket", "s3.example:9000", "must have the form https://HOST:PORT"),
        ("s3://bucket", "https://[::", "must have the form https://HOST:PORT"),
        ("file://folder/x", None, "with three slashes"),
        ("file:///a/../b", None, "with three slashes"),
    ],
)
def test_an_invalid_place_is_one_sentence_without_a_secret(place, endpoint, reason, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint or "")
    with pytest.raises(PlaceError, match=reason) as caught:
        store_at(place)
    assert SECRET not in str(caught.value)


def test_a_dashboard_that_cannot_use_the_place_says_why(capsys):
    with pytest.raises(SystemExit):
        launcher.parse_options(["--objects", "s3://bucket"])
    assert "--password-file, --ca and --objects need --store" in capsys.readouterr().err
    store = ["--store", "clickhouse://127.0.0.1:1/telemetry"]
    for place, reason in (("s4://bucket", "use s3://BUCKET/PREFIX"), ("file://x", "with three slashes")):
        with pytest.raises(launcher.LaunchError, match=f"--objects: .*{reason}"):
            launcher.prepare(launcher.parse_options([*store, "--objects", place]))
    chosen = launcher.parse_options([*store, "--objects", "s3://b-1/x"]).settings
    assert [engine.objects for engine in chosen.engines] == ["s3://b-1/x"]
    assert launcher.parse_options([*store, "--objects", "none"]).settings.engines[0].objects is None


@in_make_faults
@pytest.mark.skipif(find_spec("streamlit") is None, reason="streamlit is not installed")
def test_the_samples_page_shows_the_images_of_a_run_on_the_engine(engine, logs, shared, monkeypatch):
    from PIL import Image

    from dashboard import session
    from tests.dashboard.views.pages import open_page
    from tests.dashboard.views.test_samples_page import get

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
    monkeypatch.setattr(DashboardSettings, "in_use", settings)
    session._store.clear()
    try:
        tab = open_page("samples", id_of(folder))
        assert tab.is_well()
        [column] = tab.samples()["columns"]
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
    assert shipped.sender.behind == 0
    assert shipped.objects.totals.last_error == said[-1]
    assert said[-1] == f"the folder {shared.folder} is missing; make or mount it"
    assert said[-1] in shipped.sender.last_error
    shared.folder.mkdir()
    shipped.objects.ship_all()
    assert (shipped.objects.is_behind, shipped.objects.totals.last_error) == (False, "")
    assert stored(shared, folder) == {"a.png": PNG}


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

    assert "2 other files stored, those of 0 runs wait" in capsys.readouterr().out
    expected = [
        f"{BUCKET}/team/x/{id_of(each)}/{path}"
        for each in (folder, other)
        for path in (".copy", "samples/a.png")
    ]
    assert s3.names("team") == sorted(expected)
    for name, value in s3.keys("page").items():
        monkeypatch.setenv(name, value)
    reads = store_at(place)
    store = ClickHouseStore(engine.address(), objects=reads)
    assert store.read_file(id_of(folder), "samples/a.png", max_bytes=1000) == PNG
    with pytest.raises(StoreError, match="AWS Error ACCESS_DENIED"):
        reads.write("objects/x", io.BytesIO(b"x"))
    back = tmp_path / "back"
    assert main(["copy", id_of(folder), "--from", address, "--to", str(back), *files]) == 0
    assert (back / "on-s3" / "samples" / "a.png").read_bytes() == PNG
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-" + SECRET)
    assert main(["copy", id_of(other), "--from", address, "--to", str(back), *files]) == 2
    said = capsys.readouterr()
    assert "AWS Error SIGNATURE_DOES_NOT_MATCH" in said.err
    assert SECRET not in said.out + said.err


def committed(ask, folder):
    rows = ask.rows(f"SELECT end FROM commits WHERE run_id = {quote(id_of(folder))}")
    return max((end for (end,) in rows), default=0)


@in_make_faults
def test_with_s3_down_records_are_shipped_and_files_follow(engine, ask, s3, logs, monkeypatch):
    monkeypatch.setattr(outbox, "LONGEST_S", 1.0)
    monkeypatch.setattr(sender, "EVERY_S", 0.1)
    monkeypatch.setattr(objects, "EVERY_S", 0.1)
    for name, value in s3.keys("ship").items():
        monkeypatch.setenv(name, value)
    folder = make_run(logs, "down")
    store = ObjectShipper(store_at(f"s3://{BUCKET}/down"))
    running = begin_shipping(engine, logs, objects=store)
    stop = threading.Event()
    thread = threading.Thread(target=running.run, args=(stop,))
    thread.start()
    try:
        add_sample(folder, "samples/before.png", b"before")
        wait_until(lambda: f"{BUCKET}/down/{id_of(folder)}/samples/before.png" in s3.names("down"))
        for number, how in enumerate((signal.SIGKILL, signal.SIGSTOP)):
            name = f"samples/{number}.png"
            s3.process.send_signal(how)
            add_sample(folder, name, b"%d" % number)
            size = (folder / "metrics.jsonl").stat().st_size
            wait_until(lambda size=size: committed(ask, folder) == size)
            if how == signal.SIGKILL:
                wait_until(lambda: "NETWORK_CONNECTION" in store.totals.last_error)
                assert SECRET not in store.totals.last_error
                s3.process.wait()
                s3.start()
            else:
                s3.process.send_signal(signal.SIGCONT)
            wait_until(lambda name=name: f"{BUCKET}/down/{id_of(folder)}/{name}" in s3.names("down"))
        wait_until(lambda: store.totals.last_error == "")
    finally:
        stop.set()
        thread.join()
        if s3.process.poll() is not None:
            s3.start()
