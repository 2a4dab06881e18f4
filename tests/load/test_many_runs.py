"""Very many runs under one dashboard."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import psutil
import pytest

from tests.lengths import in_make_faults, longer
from tests.load.long_run import held_by
from tests.made_runs import write_run
from tests.waiting import wait_until
from toolkit.telemetry.runfolder.manifest import Heartbeat, read_manifest, write_manifest
from toolkit.telemetry.runs.listing import run_listing
from toolkit.telemetry.runs.listing.search import matches, parse, sort_cards
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.store import UnknownRun

RUNS = longer(300, 10_000)
LOOKS = longer(40, 200)
QUERIES = ("", "run-0007", "status:finished loss<0.6", "-tag:baseline duration>1s", "lr>1e-5 progress>40%")
ORDERS = ("last sign", "started", "name", "loss", "progress", "duration", "status")
PER_PAGE = 100


def write_many_runs(root, count, records):
    for number in range(count):
        curves = {"train_loss": lambda step: 1.0 / (1 + step), "lr": lambda _step: 1e-4}
        write_run(
            root, f"run-{number:04}", curves=curves, sessions=[range(records)], began=1.7e9 + 60 * number
        )


def one_look(store, text="", order="last sign"):
    """List, search, sort and sample the losses of the first page: what one refresh of the runs page does."""
    # The store reads the disk at most twice a second, so nine of ten refreshes here would cost nothing.
    store._rescan()
    query = parse(text)
    shown = sort_cards([card for card in store.list_runs().cards if matches(query, card)], order)
    store.trends([card.key for card in shown[:PER_PAGE]])
    return shown


def touch(root, name, step):
    """Update the heartbeat of one run."""
    beat = Heartbeat(time=time.time(), seq=step, global_step=step)
    write_manifest(root / name, replace(read_manifest(root / name), heartbeat=beat))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("many") / "logs"
    write_many_runs(root, RUNS, records=30)
    return root


@pytest.fixture
def read(monkeypatch):
    """The folders whose manifest was read."""
    folders = []
    read_manifest = run_listing.read_manifest

    def reading(folder):
        folders.append(folder)
        return read_manifest(folder)

    monkeypatch.setattr(run_listing, "read_manifest", reading)
    return folders


@in_make_faults
@pytest.mark.slow
def test_a_refresh_of_very_many_runs_reads_only_what_changed_and_keeps_nothing_open(
    root, read, record_property
):
    store = LocalStore([root], cache_dir=None)
    began = time.thread_time()
    assert len(one_look(store)) == RUNS
    first_s = time.thread_time() - began
    assert len(read) == RUNS

    read.clear()
    began = time.thread_time()
    one_look(store)
    again_s = time.thread_time() - began
    assert read == []

    touch(root, "run-0005", 7)
    assert next(card for card in one_look(store) if card.name == "run-0005").step == 7
    assert [folder.name for folder in read] == ["run-0005"]

    process = psutil.Process()
    for number in range(20):
        one_look(store, QUERIES[number % len(QUERIES)], ORDERS[number % len(ORDERS)])
    before = held_by(process)
    for number in range(LOOKS):
        one_look(store, QUERIES[number % len(QUERIES)], ORDERS[number % len(ORDERS)])

    def usage_without_leftovers():
        now = held_by(process)
        return now if now["files"] <= before["files"] and now["threads"] <= before["threads"] else None

    # Another thread of this process may have one open for a short time.
    after = wait_until(usage_without_leftovers)

    record_property(
        "measured",
        f"{RUNS:,} runs: first refresh {first_s:.2f} s CPU, again {again_s:.3f} s; over "
        f"{LOOKS} refreshes {after['rss_mb'] - before['rss_mb']:+.1f} MB, "
        f"{after['files'] - before['files']:+.0f} open files",
    )
    assert after["rss_mb"] - before["rss_mb"] < 16.0


def test_tabs_of_a_run_that_is_gone_do_not_have_the_whole_directory_listed_each_time(root, monkeypatch):
    store = LocalStore([root], cache_dir=None)
    store.list_runs()
    scans = []
    scan = run_listing.RootListing.scan

    def slow_scan(listing):
        scans.append(listing)
        # As on a disk far away, so that this test needs no ten thousand runs.
        time.sleep(0.3)
        return scan(listing)

    monkeypatch.setattr(run_listing.RootListing, "scan", slow_scan)
    store._rescan()
    began = time.monotonic()
    scans.clear()
    for _ in range(40):
        with pytest.raises(UnknownRun):
            store.meta("run-of-last-year-that-is-gone")

    # At most every other second is spent on it; a new listing each time would be forty.
    assert len(scans) <= 1 + (time.monotonic() - began) / 0.55
    assert len(scans) < 20


def test_a_run_that_has_just_begun_is_found_though_the_list_is_older(root):
    store = LocalStore([root], cache_dir=None)
    store.list_runs()
    write_run(root / "elsewhere", "run-0000")
    time.sleep(store.list_runs().read_ms / 1000 + 0.05)
    os.rename(root / "elsewhere" / "run-0000", root / "brand-new")
    try:
        assert store.meta("brand-new").card.key == "brand-new"
    finally:
        os.rename(root / "brand-new", root / "elsewhere" / "run-0000")


@in_make_faults
def test_what_is_held_for_a_run_does_not_grow_with_how_many_there_are(tmp_path):
    import tracemalloc

    held = []
    for runs in (100, 200, 400):
        write_many_runs(tmp_path / str(runs), runs, records=3)
        tracemalloc.start()
        store = LocalStore([tmp_path / str(runs)], cache_dir=None)
        one_look(store)
        held.append(tracemalloc.get_traced_memory()[0] / runs)
        tracemalloc.stop()

    assert held[2] < 1.5 * held[0]
    assert held[2] < 30_000
