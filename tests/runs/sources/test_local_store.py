"""Runs are listed from their small files, in whatever state they are, and nothing outside their folders is touched."""

import json
import math
import os
import re
import shutil
import time

import pytest

from tests.made_runs import BEGAN, append, write_run
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.labels import Labels
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runfolder.records import MAX_LINE_BYTES
from toolkit.telemetry.runs.listing import run_listing
from toolkit.telemetry.runs.listing.run_folders import RunFolders
from toolkit.telemetry.runs.sources import store_queries
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.store import Refused, RunQuery, UnknownRun

posix = pytest.mark.skipif(os.name != "posix", reason="links, FIFOs and odd names are POSIX's")


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


@pytest.fixture
def store(root, monkeypatch):
    # Every call looks at the folder: a test changes it faster than twice a second, and after a look that took
    # long, as on a machine that paused, the store would wait ten times as long before the next.
    scan = RunFolders.scan
    monkeypatch.setattr(RunFolders, "scan", lambda folders, *, again=False: scan(folders, again=True))
    return LocalStore([root], cache_dir=None)


def keys(store):
    return [card.key for card in store.list_runs().cards]


# ---------------------------------------------------------------- statuses


def test_a_folder_without_a_manifest_is_a_run_of_which_little_is_known(root, store):
    folder = write_run(root, "r", status=None)

    card = store.card("r")

    assert (card.status.name, card.status.sure) == ("lost", False)
    assert card.last_sign == folder.joinpath("metrics.jsonl").stat().st_mtime
    assert store.refresh("r", wait_s=60.0).records > 0


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format":1}', b"x" * 2_000_000, b"[" * 100_000, b'{"format":"1"}']
)
def test_a_manifest_that_cannot_be_used_is_an_unreadable_run_and_no_failure(root, store, content):
    folder = write_run(root, "r")
    (folder / "run.json").write_bytes(content)
    write_run(root, "good")

    card = store.card("r")

    assert card.status.name == "unreadable"
    assert "run.json" in card.problem
    assert card.name == "r"
    assert card.step == store.card("good").step is not None
    assert store.card("good").status.name == "finished"
    assert store.refresh("r", wait_s=60.0).records > 0


def test_labels_that_cannot_be_read_leave_the_run_as_it_is_and_are_not_written_over(root, store):
    labels = write_run(root, "r") / "labels.json"
    labels.write_text('{"notes": "a week of work",}')

    card = store.card("r")

    assert card.status.name == "finished"
    assert "labels.json" in card.problem
    with pytest.raises(Refused, match="not JSON"):
        store.label("r", Labels(archived=True))
    assert "a week of work" in labels.read_text()


# ---------------------------------------------------------------- what a card says


def test_a_card_is_made_from_manifest_and_labels(root, store):
    write_run(
        root,
        "r",
        sessions=[range(100), range(60, 120)],
        tags=["a"],
        project="jackets",
        summary={"max_steps": 240, "train_loss": 0.5, "lr": 1e-4, "epoch": 2, "samples_per_sec": 3},
        labels=Labels(display_name="my run", tags=("b", "c"), archived=True),
    )

    card = store.card("r")

    assert (card.name, card.tags, card.archived, card.project) == ("my run", ("b", "c"), True, "jackets")
    assert (card.step, card.max_steps, card.progress) == (119, 240, pytest.approx(119 / 240))
    assert (card.loss, card.lr, card.epoch, card.samples_per_sec) == (0.5, 1e-4, 2.0, 3.0)
    assert (card.sessions, card.created) == (2, BEGAN)
    assert card.duration_s == 80.0


@pytest.mark.parametrize(("records", "step"), [(18, 17), (19, 18)], ids=["all", "and one after the last"])
def test_a_run_that_counts_its_steps_from_zero_is_done_after_the_last(root, store, records, step):
    write_run(root, "r", sessions=[range(records)], summary={"max_steps": 18, "first_step": 0})
    card = store.card("r")

    assert (card.step, card.steps_done, card.progress) == (step, 18, 1.0)


def test_the_last_loss_is_known_where_the_last_record_has_another_metric_alone(root, store):
    write_run(root, "r", sessions=[range(3)], curves={"train_loss": [3.0, 2.0, 1.5]}, summary={})

    assert store.card("r").loss == 1.5


def test_odd_values_in_a_summary_are_no_values(root, store):
    odd = {"max_steps": "many", "train_loss": None, "lr": [1], "epoch": True, "samples_per_sec": {}}
    write_run(root, "r", summary=odd)

    card = store.card("r")

    assert (card.max_steps, card.lr, card.epoch, card.samples_per_sec) == (None,) * 4
    assert math.isnan(card.loss), "what is there and is nothing was no number"
    assert card.progress is None


def test_a_session_that_was_killed_is_not_counted_into_the_next(root, store):
    folder = write_run(root, "r", sessions=[range(100), range(100)])
    manifest = json.loads((folder / "run.json").read_bytes())
    manifest["sessions"][0].update(ended=None, status="lost")
    (folder / "run.json").write_text(json.dumps(manifest))

    assert store.card("r").duration_s == 100.0


@pytest.mark.parametrize(("number", "counted"), [(700, 700), (-1, 1), (2**40, 1_000_000)])
def test_sessions_that_the_manifest_no_longer_holds_are_counted(root, store, number, counted):
    folder = write_run(root, "r", sessions=[range(100)])
    manifest = json.loads((folder / "run.json").read_bytes())
    manifest["sessions"][0].update(session=number)
    (folder / "run.json").write_text(json.dumps(manifest))

    assert store.card("r").sessions == counted


# ---------------------------------------------------------------- listing


def test_listing_reads_a_log_once_and_only_if_nothing_else_has_the_status(root, store, monkeypatch):
    for i in range(5):
        write_run(root, f"r{i}", status=["finished", "running", "lost", None, "failed"][i])
    opened = []
    real = os.open

    def watched(path, *args, **options):
        opened.append(os.fspath(path))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", watched)
    found = store.list_runs()
    first = {os.path.relpath(path, root) for path in opened}
    opened.clear()
    again = store.list_runs()

    assert len(found.cards) == len(again.cards) == 5
    # How r2, whose process is gone, ended, its records alone can say; r3 has no manifest: its status and its
    # configuration are in its records.
    assert first == {
        *("r0/run.json", "r1/run.json", "r2/metrics.jsonl", "r2/run.json"),
        *("r3/metrics.jsonl", "r4/run.json"),
    }
    assert not opened


def test_the_newest_sign_of_life_comes_first_and_folders_that_are_no_runs_do_not_come(root, store):
    write_run(root, "old", began=BEGAN)
    write_run(root, "new", began=BEGAN + 1000)
    write_run(root, "live", status="running")
    write_run(root, ".hidden")
    (root / "empty").mkdir()
    (root / "file").write_text("x")

    assert keys(store) == ["live", "new", "old"]
    assert store.list_runs().problems == ()


# ---------------------------------------------------------------- more than are listed


def age(folder, seconds):
    os.utime(folder, (time.time() - seconds,) * 2)


@pytest.fixture
def at_most_five(monkeypatch):
    monkeypatch.setattr(run_listing, "_MAX_RUNS", 5)


def many(root, number):
    """Runs of which the first one is the oldest, among as many folders without a run that are all newer."""
    for place in range(number):
        age(write_run(root, f"r{place}", [], sessions=[range(3)]), 1000 - place)
        (root / f"a{place}").mkdir()


@pytest.mark.usefixtures("at_most_five")
def test_folders_without_a_run_take_no_place_in_the_list(root, store):
    many(root, 5)

    assert sorted(keys(store)) == ["r0", "r1", "r2", "r3", "r4"]
    assert store.list_runs().truncated == ()


@pytest.mark.usefixtures("at_most_five")
def test_of_too_many_runs_the_newest_are_listed(root, store):
    many(root, 9)

    assert sorted(keys(store)) == ["r4", "r5", "r6", "r7", "r8"]
    assert store.list_runs().truncated == (str(root),)


def test_a_log_directory_that_is_missing_or_a_file_is_reported(tmp_path):
    (tmp_path / "file").write_text("x")
    for name, why in (("nope", "does not exist yet"), ("file", "cannot be listed")):
        found = LocalStore([tmp_path / name], cache_dir=None).list_runs()

        assert found.cards == ()
        assert why in found.problems[0]


def test_runs_of_several_log_directories_have_keys_of_their_own(tmp_path):
    for part in ("a", "b", "c"):
        write_run(tmp_path / part, "same", curves={"train_loss": lambda step, part=part: ord(part)})
    write_run(tmp_path / "c", "alone")
    # Whatever the order, and with fewer of them, an address leads to the same run.
    for parts in ("abc", "cab", "b"):
        store = LocalStore([tmp_path / part for part in parts], cache_dir=None)
        for part in parts:
            key = f"{part}~same"
            store.refresh(key, wait_s=60.0)
            assert store.recent(key, "train_loss", 1).tolist() == [ord(part)]
            assert store.card(key).path == tmp_path / part / "same"
        if len(parts) > 1:
            assert sorted(keys(store)) == ["alone", "a~same", "b~same", "c~same"]
            assert store.card("5~alone").key == store.card("c~alone").key == "alone"
            with pytest.raises(UnknownRun) as error:
                store.card("same")
            assert sorted(error.value.near) == ["a~same", "b~same", "c~same"]
    assert store.card("b~same").key == "same"


def test_a_key_that_means_another_run_now_shows_nothing_of_the_old_one(tmp_path):
    for part in ("a", "b"):
        write_run(tmp_path / part, "r", curves={"train_loss": lambda step, part=part: ord(part)})
    store = LocalStore([tmp_path / "a", tmp_path / "b"], cache_dir=None)
    (tmp_path / "b" / "r").rename(tmp_path / "away")
    store.list_runs()
    store._rescan()
    store.refresh("r", wait_s=60.0)
    assert store.recent("r", "train_loss", 1).tolist() == [ord("a")]
    (tmp_path / "away").rename(tmp_path / "b" / "r")
    (tmp_path / "a" / "r").rename(tmp_path / "away")
    store._rescan()
    store.refresh("r", wait_s=60.0)
    assert store.recent("r", "train_loss", 1).tolist() == [ord("b")]
    assert store.card("r").path == tmp_path / "b" / "r"


def test_a_query_finds_some_and_the_counts_are_of_all(root, store):
    for number in range(5):
        write_run(root, f"r{number}", project="faces" if number < 3 else None, tags=(f"t{number}",))
    write_run(root, "old", labels=Labels(archived=True))

    found = store.list_runs(RunQuery(project="faces", sort="name", page=2, per_page=2))
    counts = store.list_runs(RunQuery(per_page=0))

    assert [card.key for card in found.cards] == ["r2"]
    assert (found.matching, found.page, found.total) == (3, 2, 6)
    assert (counts.cards, counts.matching) == ((), 6)
    for one in (found, counts):
        assert one.statuses == {"finished": 5}
        assert one.archived_statuses == {"finished": 1}
        assert one.tags == ("t0", "t1", "t2", "t3", "t4")
        assert one.projects == ("faces",)
        assert one.places == (str(root),)


def test_the_records_are_given_back_byte_for_byte(root, store):
    folder = write_run(root, "r", ranks={3: {"sec_per_step": float}})
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b"not a record\n\x00\xff\n\n" + b"x" * (MAX_LINE_BYTES + 5) + b'\n{"event":"st')

    whole = (folder / "metrics.jsonl").read_bytes()
    assert b"".join(store.record_lines("r")) == whole[: whole.rindex(b"\n") + 1]
    assert b"".join(store.record_lines("r", rank=3)) == rank_file(folder, 3).read_bytes()
    with pytest.raises(Refused, match="could not be read"):
        list(store.record_lines("r", rank=4))


# ---------------------------------------------------------------- one run


def test_a_run_is_described_with_its_start_and_environment(root, store):
    packages, data = {"packages": {"torch": "2"}}, {"data": [{"path": "images"}]}
    late = [{"event": "environment", **found} for found in (packages, data)]
    write_run(root, "r", start={"config": {"a": 1}}, extra=late)
    append(root / "r", [{"event": "start", "session": 2, "config": {"a": 1}, "lr": 2}])
    before = store.meta("r")
    store.refresh("r", wait_s=60.0)
    after = store.meta("r")

    assert before.start["config"] == after.start["config"] == {"a": 1}
    assert ("lr" in before.start, after.start["lr"]) == (False, 2), "the newest start"
    assert after.environment.items() >= {**packages, **data}.items()
    assert after.writable
    assert after.manifest.name == "r"


def test_runs_that_no_one_views_are_unloaded_and_come_back(root, store, monkeypatch):
    monkeypatch.setattr(store_queries, "_MEMORY_BUDGET", 1)
    monkeypatch.setattr(store_queries, "_IN_USE_S", -1.0)
    for name in ("a", "b", "c"):
        write_run(root, name)
        store.refresh(name, wait_s=60.0)

    assert len(store._logs) == 1
    assert store.refresh("a", wait_s=60.0).records == 102


def test_a_folder_that_was_deleted_and_created_again_is_read_again(root, store):
    folder = write_run(root, "r")
    store.refresh("r", wait_s=60.0)
    token = store.delete("r")
    write_run(root, "r", curves={"train_loss": lambda step: 7.0})

    assert not folder.joinpath("nope").exists()
    assert store.refresh("r", wait_s=60.0).replaced_at is None
    assert store.recent("r", "train_loss", 1).tolist() == [7.0]
    assert store.restore(token) == "r-2"


# ---------------------------------------------------------------- trends


def test_trends_sample_the_losses(root, store):
    write_run(root, "short", sessions=[range(10)], curves={"train_loss": lambda step: step})
    write_run(root, "long", sessions=[range(5000)], curves={"train_loss": lambda step: step})
    write_run(root, "other", sessions=[range(5)], curves={"accuracy": lambda step: step})
    store.list_runs()

    found = store.trends(["short", "long", "other", "nope"])

    assert found["short"] == list(range(10))
    assert 30 <= len(found["long"]) <= 40
    assert found["long"] == sorted(found["long"])
    assert found["long"][-1] > 4800
    assert found["other"] == []
    assert "nope" not in found
    assert len(store.trends(["long"], points=1)["long"]) >= 1


@pytest.mark.parametrize("status", ["finished", "failed", "lost"])
def test_no_request_reaches_a_run_that_has_ended(root, store, status):
    folder = write_run(root, "r", status=status)

    with pytest.raises(Refused, match=f"the run is {status}"):
        store.ask("r", {"log_every": 20})
    assert not (folder / "control.json").exists()


# ---------------------------------------------------------------- the trash


def test_a_run_of_the_second_log_directory_comes_back_to_it(tmp_path):
    write_run(tmp_path / "a", "r")
    write_run(tmp_path / "b", "r", labels=Labels(display_name="Renamed"))
    store = LocalStore([tmp_path / "a", tmp_path / "b"], cache_dir=None)
    token = store.delete("b~r")

    assert keys(store) == ["r"]
    assert [run.name for run in store.trash()] == ["Renamed"]
    assert store.restore(token) == "b~r"
    assert sorted(keys(store)) == ["a~r", "b~r"]


@pytest.mark.parametrize(
    "token", ["", "0", "0~", "0~1-00000000", "7~1-00000000", "-1~x", "x~y", "²~1", "0~../r"]
)
def test_no_other_token_brings_anything_back(root, store, token):
    write_run(root, "r")

    with pytest.raises(Refused):
        store.restore(token)


@pytest.mark.parametrize("is_started_so", [True, False])
def test_a_store_refuses_who_may_only_look_and_obeys_who_may_steer(root, store, tmp_path, is_started_so):
    write_run(root, "live", status="running")
    write_run(root, "done")
    write_run(root, "gone")
    token = store.delete("gone")
    cache_dir = tmp_path / "kept"
    (cache_dir / "x").mkdir(parents=True)
    asking = [None if is_started_so else "your account has read-only access"]
    shared = LocalStore(
        [root], cache_dir=cache_dir, read_only=is_started_so, read_only_reason=lambda: asking[0]
    )
    before = sorted(str(path) for path in (*root.rglob("*"), *cache_dir.rglob("*")))

    for change in (
        lambda: shared.ask("live", {"log_every": 20}),
        lambda: shared.label("done", Labels(notes="x")),
        lambda: shared.delete("done"),
        lambda: shared.restore(token),
        shared.empty_trash,
        shared.empty_cache,
    ):
        with pytest.raises(Refused, match="read-only"):
            change()

    assert sorted(str(path) for path in (*root.rglob("*"), *cache_dir.rglob("*"))) == before
    assert not shared.meta("done").writable
    assert shared.refresh("done").records == 102

    asking[0], shared.read_only = None, False
    shared.label("done", Labels(notes="x"))

    assert shared.meta("done").writable
    assert shared.meta("done").labels.notes == "x"


# ---------------------------------------------------------------- files of a run


@pytest.fixture
def files(root, store, tmp_path):
    folder = write_run(root, "r")
    (folder / "samples").mkdir()
    (folder / "samples" / "a.png").write_bytes(b"picture")
    (tmp_path / "secret").write_bytes(b"secret")
    return folder


def read(store, relative, max_bytes=1000):
    return store.read_file("r", relative, max_bytes=max_bytes)


def test_a_file_inside_the_folder_is_read(store, files):
    assert read(store, "samples/a.png", max_bytes=7) == read(store, "./samples//a.png") == b"picture"
    with pytest.raises(Refused, match="7 bytes, more than the limit of 6"):
        read(store, "samples/a.png", max_bytes=6)


def test_of_very_many_links_some_are_named_and_the_others_counted(root, store):
    write_run(root, "good")
    for number in range(500):
        (root / f"link-{number}").symlink_to("good")
    problems = store.list_runs().problems

    assert len(problems) == 21
    assert "480 more symbolic links are not followed" in problems


def test_the_duration_of_a_run_that_moved_to_a_node_with_another_clock_is_right(root, store):
    with TelemetryLogger("moved", log_dir=root) as log:
        log.log_step(1, train_loss=1.0)
    folder = log.run_folder
    change(
        folder, r'("(?:time|started|ended|created)":\s*)(\d+\.\d+)', lambda m: f"{m[1]}{float(m[2]) + 7200}"
    )
    with TelemetryLogger("moved", log_dir=root, resume=True) as log:
        log.log_step(2, train_loss=1.0)
        card = store.card("moved")
        assert card.duration_s < 3600
        assert card.last_sign - time.time() < 3600
    killed = shutil.copytree(folder, root / "killed")
    change(killed, r'("pid":\s*)\d+', lambda m: f"{m[1]}4194303")
    change(killed, r'("(?:display_)?name":\s*)"moved"', lambda m: f'{m[1]}"killed"')

    assert store.card("killed").duration_s < 3600
    with TelemetryLogger("killed", log_dir=root, resume=True) as log:
        log.log_step(3, train_loss=1.0)
    assert log.run_folder == killed
    assert store.card("killed").sessions == 3
    assert store.card("killed").duration_s < 3600


def change(folder, pattern, to):
    for path in (folder / "run.json", folder / "metrics.jsonl"):
        path.write_text(re.sub(pattern, to, path.read_text()))
