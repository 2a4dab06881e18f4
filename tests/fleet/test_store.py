"""Every answer of the store on the engine is the one of the store on folders, byte for byte."""

import math
import signal
import uuid
from importlib.util import find_spec

import numpy as np
import pytest

from tests.fleet.shipped_runs import BROKEN, append, id_of, make_run, say_labels, ship, write
from tests.lengths import in_make_faults
from tests.runs.sources.store_answers import answers_of
from tests.runs.sources.test_store_answers import write_rich_run
from tests.waiting import wait_until
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.runfolder.labels import Labels
from toolkit.telemetry.runfolder.process import host_name
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.store import Refused, RunQuery, StoreUnavailable, UnknownRun

PATIENCE_S = 120.0
"""Lists need JSON columns."""


def store_on(engine, **how):
    return ClickHouseStore(engine.address(), patience_s=PATIENCE_S, **how)


def differences(found, expected):
    assert list(found) == list(expected)
    return [question for question in expected if found[question] != expected[question]]


def test_a_rich_run(engine, logs):
    folder = write_rich_run(logs)
    ship(engine, logs)
    expected = answers_of(LocalStore([logs], cache_dir=None), "r")

    found = answers_of(store_on(engine), id_of(folder))

    assert differences(found, expected) == []


def test_a_run_that_grew_while_it_was_looked_at(engine, logs):
    folder = make_run(logs, "grows", lines=20)
    store, key = store_on(engine), id_of(folder)
    for steps in (range(20, 40), range(40, 41), range(41, 90)):
        ship(engine, logs)
        look_now(store, key)
        store.series(key, "train_loss")
        append(folder, steps, odd=math.nan)
    ship(engine, logs)
    look_now(store, key)

    expected = answers_of(LocalStore([logs], cache_dir=None), "grows")

    assert differences(answers_of(store, key), expected) == []


def look_now(store, key):
    """Refresh, although the engine was asked just now."""
    store._commits._known.clear()
    store._runs.look_again()
    store._log(key)._checked_at = -math.inf
    store.refresh(key, wait_s=PATIENCE_S)


def test_ranks_whose_lines_were_sent_twice_count_once(engine, logs):
    folder = make_run(logs, "ranked", lines=40)
    for rank in (1, 2):
        append(folder, range(40), rank=rank, sec_per_step=0.1 * rank)
    ship(engine, logs)
    key, expected = (
        id_of(folder),
        LocalStore([logs], cache_dir=None).rank_grid("ranked", "sec_per_step", buckets=8),
    )
    assert expected.slowest(1)[0].rank == 2

    def check():
        grid = store_on(engine).rank_grid(key, "sec_per_step", buckets=8)
        assert (grid.ranks, grid.first_step, grid.cell_steps) == (
            expected.ranks,
            expected.first_step,
            expected.cell_steps,
        )
        assert (grid.high == expected.high).all()
        assert np.allclose(grid.mean, expected.mean)

    check()
    connection = Engine(engine.address())
    columns = "run_id, metric, rank, gen, at, step, value, created"
    connection.query(
        f"INSERT INTO points ({columns}) SELECT {columns} FROM points "
        f"WHERE run_id = {quote(key)} AND metric = 'sec_per_step' AND step < 20"
    )
    check()


def send_again(engine, keys):
    """Insert what the engine has of these runs once more, as a shipper does that was killed before its commit."""
    connection = Engine(engine.address())
    ids = ", ".join(map(quote, keys))
    for table in ("records", "points", "runs"):
        connection.query(f"INSERT INTO {table} SELECT * FROM {table} WHERE run_id IN ({ids})")
    connection.close()


def test_several_runs_are_read_together(engine, logs):
    folders = [make_run(logs, f"together-{number}", lines=10 * number) for number in range(1, 4)]
    write(folders[0], b"".join(line + b"\n" for line in BROKEN))
    ship(engine, logs)
    keys, names = [id_of(folder) for folder in folders], [folder.name for folder in folders]
    send_again(engine, keys)
    store, local = store_on(engine), LocalStore([logs], cache_dir=None)

    found = store.refresh_all(keys, wait_s=PATIENCE_S)

    expected = local.refresh_all(names, wait_s=PATIENCE_S)
    assert [(one.records, one.bad_count, one.bytes_read) for one in found] == [
        (one.records, one.bad_count, one.bytes_read) for one in expected
    ]
    assert all(
        differences(answers_of(store, key), answers_of(local, name)) == []
        for key, name in zip(keys[:1], names[:1], strict=True)
    )
    total = local.series(names[2], "train_loss").total
    assert store.series_of(keys, "train_loss")[keys[2]].total == total
    alone = store_on(engine)
    alone.refresh(keys[2], wait_s=PATIENCE_S)
    assert alone.series(keys[2], "train_loss").total == total


def test_a_list_is_searched_and_labelled(engine, logs):
    project = uuid.uuid4().hex
    folders = [make_run(logs, f"listed-{number}", project=project) for number in range(3)]
    ship(engine, logs)
    store = store_on(engine, visitor=lambda: "ann@example.org")

    def names(text=""):
        found = store.list_runs(RunQuery(project=project, text=text, sort="name"))
        return [card.name for card in found.cards]

    assert names() == ["listed-0", "listed-1", "listed-2"]
    assert names("-listed-1") == ["listed-0", "listed-2"]
    assert {card.status.name for card in store.list_runs(RunQuery(project=project)).cards} == {"finished"}
    hostile = "it's \\' OR 1=1 --\x00\"; drop table runs"
    assert names(f'"{hostile[:9]}"') == []
    assert store.series(id_of(folders[0]), hostile).empty

    store.label(id_of(folders[0]), Labels(display_name=hostile, tags=("a'b",), notes="n"))
    again = store_on(engine)
    assert again.meta(id_of(folders[0])).labels == Labels(display_name=hostile, tags=("a'b",), notes="n")
    assert again.card("listed-1").key == id_of(folders[1])

    token = store.delete(id_of(folders[1]))
    assert "listed-1" not in names()
    assert token in [item.token for item in store.trash()]
    assert store.restore(token) == id_of(folders[1])
    assert "listed-1" in names()


def test_labels_of_a_clock_that_is_far_ahead_hide_no_later_change(engine, logs):
    ahead, other = (make_run(logs, name) for name in ("ahead", "other"))
    ship(engine, logs)
    store = store_on(engine)
    say_labels(Engine(engine.address()), ahead, deleted=False)
    store.list_runs()
    store.label(id_of(other), Labels(notes="first"))
    assert store.meta(id_of(other)).labels == Labels(notes="first")

    store.label(id_of(other), Labels(notes="second"))

    assert store.meta(id_of(other)).labels == Labels(notes="second")


def test_what_the_store_does_not_do_is_refused_with_the_reason(engine, logs):
    folder = make_run(logs, "refused")
    ship(engine, logs)
    store, key = store_on(engine), id_of(folder)

    with pytest.raises(Refused, match="does not deliver requests"):
        store.ask(key, {"actions": ["stop"]})
    with pytest.raises(Refused, match=rf"was not shipped; it is on {host_name()}"):
        store.read_file(key, "samples/1.png", max_bytes=10)
    with pytest.raises(Refused, match="administrator"):
        store.empty_trash()
    with pytest.raises(UnknownRun):
        store.card("no such run")
    with pytest.raises(Refused, match="read-only"):
        store_on(engine, read_only=True).label(key, Labels())


def processes_of(engine):
    return [server.process for server in engine.servers] if hasattr(engine, "servers") else [engine.process]


@in_make_faults
def test_while_the_engine_does_not_answer_the_store_keeps_what_it_holds(engine, logs):
    folder = make_run(logs, "held")
    ship(engine, logs)
    store, key = ClickHouseStore(engine.address(), patience_s=2.0), id_of(folder)
    wait_until(lambda: store.list_runs().find(key) is not None)
    wait_until(lambda: store.refresh(key).records == 20 and len(store.recent(key, "train_loss", 99)) == 20)
    before = store.recent(key, "train_loss", 99).tobytes()
    append(folder, range(20, 30))
    ship(engine, logs)
    store._commits.look_at([key])
    try:
        for process in processes_of(engine):
            process.send_signal(signal.SIGSTOP)
        health = wait_until(lambda: (found := store.refresh(key)).is_stale and found)
        assert "has not answered since" in health.problem
        assert (health.records, health.gaps) == (20, 0), "it is not said that lines are missing"
        assert store.recent(key, "train_loss", 99).tobytes() == before
        runs = store.list_runs()
        assert runs.find(key) is not None
        assert wait_until(lambda: store.list_runs().is_stale)
        with pytest.raises(StoreUnavailable):
            store.card("another run")
    finally:
        for process in processes_of(engine):
            process.send_signal(signal.SIGCONT)
    wait_until(lambda: not store.list_runs().is_stale)
    wait_until(lambda: store.refresh(key).records == 30)


@in_make_faults
@pytest.mark.skipif(find_spec("streamlit") is None, reason="streamlit is not installed")
def test_pages_open_on_the_engine(engine, logs, monkeypatch):
    from dashboard import session
    from dashboard.settings import DashboardSettings, EngineSettings
    from tests.dashboard.views.pages import open_page

    key = id_of(write_rich_run(logs))
    ship(engine, logs)
    settings = DashboardSettings(engines=(EngineSettings(url=str(engine.address())),))
    monkeypatch.setattr(DashboardSettings, "in_use", settings)
    session._store.clear()
    try:
        tab = open_page("runs", key, runs=key)
        for page in ("runs", "overview", "metrics", "machine", "compare"):
            assert tab.go_to(page).is_well(), page
            if page == "overview":
                assert "step 89 / 89" in tab.said()
            if page == "runs":
                assert f"/{engine.address().database} · listed in" in tab.said()
    finally:
        session._store.clear()
