"""Runs of other tools behind the same store: every point, only what is new, and labels elsewhere."""

from __future__ import annotations

import os
import shutil
import threading
import time
from dataclasses import replace

import pytest

pytest.importorskip("pyarrow")

from tests.importers import samples
from tests.made_runs import write_run
from toolkit.telemetry.importers.detect import find_sources
from toolkit.telemetry.importers.summary import summarise
from toolkit.telemetry.runs.listing import foreign_runs
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.store import NO_END, RunQuery, UnknownRun

TABLE = "step,loss,lr\n"


@pytest.fixture(autouse=True)
def _all_the_time_that_it_takes(monkeypatch):
    for name in ("_FIRST_WAIT_S", "_WITH_OURS_S"):
        monkeypatch.setattr(foreign_runs, name, 60.0)


@pytest.fixture
def open_store(tmp_path):
    def make(root, **options):
        return LocalStore([root], cache_dir=None, labels_dir=tmp_path / "labels", other_tools=True, **options)

    return make


def lines(first, last):
    return "".join(f"{step},{1 / (step + 1)},0.001\n" for step in range(first, last))


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "logs" / "lightning" / "metrics.csv"
    path.parent.mkdir(parents=True)
    path.write_text(TABLE + lines(0, 50), "utf-8")
    return path


def only_key(store):
    (card,) = store.list_runs().cards
    return card.key


def key_called(store, name):
    return next(card.key for card in store.list_runs().cards if card.name == name)


def read(store, key):
    health = store.refresh(key, wait_s=60.0)
    assert health.complete
    return health


def test_every_series_has_every_point_and_nothing_changes(open_store):
    root = samples.ours()
    before = samples.fingerprint(root)
    expected = {}
    for source in find_sources(root).runs:
        key = f"{source.info.format}~{source.info.source_id[:12]}"
        # The same run in a database and in a Parquet file.
        expected[f"{key}-2" if key in expected else key] = summarise(source, time.time())
    store = open_store(root)

    seen = 0
    for card in store.list_runs().cards:
        run = expected[card.key]
        read(store, card.key)
        # Widths of images and the like are no curves.
        series = {
            name: series
            for name, series in {**run["system"], **run["metrics"]}.items()
            if name.rpartition(".")[0] not in ("img", "table")
        }
        infos = {info.name: info for info in store.metrics(card.key)}
        assert infos.keys() == series.keys(), card.key
        for name, info in infos.items():
            about = (card.key, name)
            reported = series[name]
            not_finite = reported["nan"] + reported["inf"] + reported["neg_inf"]
            assert (info.count, info.non_finite) == (reported["count"], not_finite), about
            assert reported["min"] is None or (info.low, info.high) == (reported["min"], reported["max"]), (
                about
            )
            drawn = store.series(card.key, name, buckets=10_000)
            left_out = sum(len(part.x) for part in drawn.superseded)
            # A point without a time or a step is on no axis.
            assert drawn.total + left_out <= reported["count"], about
            if "steps_back" in reported and run["sessions"] and name in run["metrics"]:
                assert drawn.total + left_out == reported["count"], about
            seen += 1
        assert store.examine(card.key, wait_s=60.0) == 1.0
    assert seen > 100
    assert samples.fingerprint(root) == before


def test_a_refresh_reads_only_what_is_new(open_store, table):
    store = open_store(table.parent.parent)
    key = only_key(store)
    before = read(store, key)
    more = lines(50, 60)
    with table.open("a", encoding="utf-8") as file:
        file.write(more)

    after = read(store, key)

    assert after.bytes_read - before.bytes_read == len(more)
    assert store.recent(key, "loss", 1).tolist() == [1 / 60]
    assert store.card(key).step in (49, 59)


def test_a_run_that_was_read_stays_complete_while_a_slow_disk_is_asked_for_more(
    open_store, table, monkeypatch
):
    store = open_store(table.parent.parent)
    key = only_key(store)
    read(store, key)
    source = type(store._log(key).run)
    may_read, once = threading.Event(), source.read
    monkeypatch.setattr(source, "read", lambda *args, **options: may_read.wait(60) and once(*args, **options))

    try:
        assert store.refresh(key, wait_s=0.0).complete
        assert not store.refresh(key, wait_s=0.01).complete
    finally:
        may_read.set()
    read(store, key)


def test_a_run_is_running_by_age_while_its_file_grows(open_store, table):
    os.utime(table, (1e9, 1e9))
    store = open_store(table.parent.parent)
    key = only_key(store)
    read(store, key)
    before = store.card(key)
    with table.open("a", encoding="utf-8") as file:
        file.write(lines(50, 60))
    read(store, key)
    after = store.card(key)

    assert (before.status.name, before.live) == (NO_END, False)
    assert "no end was written" in before.status.why
    assert (after.status.name, after.status.sure) == ("running", False)
    assert "by age" in after.status.why


def test_a_copy_of_an_old_log_is_not_running_however_new_its_file_is(open_store, table):
    rows = [f"{step},{1 / (step + 1)},{1.7e9 + step}\n" for step in range(60)]
    table.write_text("step,train_loss,timestamp\n" + "".join(rows[:50]), "utf-8")
    store = open_store(table.parent.parent)
    key = only_key(store)
    read(store, key)
    with table.open("a", encoding="utf-8") as file:
        file.writelines(rows[50:])
    read(store, key)
    card = store.card(key)

    assert (card.status.name, card.live) == (NO_END, False)
    assert card.last_sign == pytest.approx(1.7e9 + 59)


def test_a_file_that_was_rewritten_is_read_again(open_store, table):
    store = open_store(table.parent.parent)
    key = only_key(store)
    read(store, key)
    table.write_text("step,loss,lr\n" + "7,0.5,0.1\n", "utf-8")

    health = read(store, key)

    assert health.replaced_at is not None
    assert store.recent(key, "loss", 9).tolist() == [0.5]
    assert store.examine(key, wait_s=60.0) == 1.0


def test_our_name_of_a_metric_finds_theirs(open_store, table):
    write_run(table.parent.parent, "ours", curves={"train_loss": lambda step: 1.0})
    store = open_store(table.parent.parent)
    key, ours = key_called(store, "lightning"), key_called(store, "ours")
    for each in (key, ours):
        read(store, each)

    found = store.series_of([key, ours], "train_loss")

    assert [found[each].total for each in (key, ours)] == [50, 100]


def test_our_own_folder_is_listed_once_whatever_is_in_it(open_store, tmp_path):
    logs = tmp_path / "logs"
    folder = write_run(logs, "ours", status=None)
    shutil.copytree(samples.ours() / "tensorboard", folder / "tensorboard")

    assert [card.logged_by for card in open_store(logs).list_runs().cards] == [None]


def test_what_is_in_the_trash_is_not_a_run_of_another_tool(open_store, tmp_path, table):
    logs = tmp_path / "logs"
    write_run(logs, "ours", status=None)
    store = open_store(logs)
    store.delete(key_called(store, "ours"))

    assert [card.name for card in open_store(logs).list_runs().cards] == ["lightning"]


def test_labels_are_saved_in_the_users_own_folder(open_store, table):
    store = open_store(table.parent.parent)
    key, before = only_key(store), samples.fingerprint(table.parent.parent)

    store.label(key, replace(store.meta(key).labels, display_name="mine", tags=("good",), notes="ok"))

    for seen in (store, open_store(table.parent.parent)):
        (card,) = seen.list_runs(RunQuery(text="tag:good")).cards
        assert (card.key, card.name, seen.meta(key).labels.notes) == (key, "mine", "ok")
    assert samples.fingerprint(table.parent.parent) == before


def test_delete_hides_it_until_it_is_restored(open_store, table):
    store = open_store(table.parent.parent)
    key, before = only_key(store), samples.fingerprint(table.parent.parent)

    token = store.delete(key)

    assert not store.list_runs().cards
    with pytest.raises(UnknownRun):
        store.card(key)
    assert [item.token for item in open_store(table.parent.parent).trash()] == [token]
    assert store.restore(token) == key
    assert only_key(store) == key
    assert samples.fingerprint(table.parent.parent) == before


def test_secrets_in_a_foreign_configuration_and_in_its_name_are_masked(open_store, tmp_path):
    folder = tmp_path / "logs" / "run-hf_abcdefghijklmnopqrstuvwxyz0123456789"
    (folder / "plots" / "metrics").mkdir(parents=True)
    (folder / "plots" / "metrics" / "loss.tsv").write_text("step\tloss\n0\t1.0\n1\t0.5\n", "utf-8")
    (folder / "params.yaml").write_text(
        "api_key: hf_abcdefghijklmnopqrstuvwxyz0123456789\nlr: 0.1\n", "utf-8"
    )
    store = open_store(tmp_path / "logs")
    key = only_key(store)
    read(store, key)

    start = store.meta(key).start

    assert start["config"]["lr"] == 0.1
    assert "hf_abc" not in str(start)
    assert "hf_abc" not in store.meta(key).card.name
