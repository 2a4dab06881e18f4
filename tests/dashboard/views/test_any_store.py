"""Pages know the RunStore protocol and nothing else: with a store that has no folders at all they work the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("streamlit")

from dashboard import session
from tests.dashboard.views.pages import (
    EVERY_PAGE,
    OF_A_RUN,
    badges,
    button,
    charts,
    choose,
    headings,
    is_well,
    open_page,
    run_table,
    said,
)
from toolkit.diagnostics.finding import Finding
from toolkit.runfolder.labels import Labels, ProjectSettings
from toolkit.runfolder.manifest import Heartbeat, Manifest, Session
from toolkit.runfolder.status import Status
from toolkit.runs.completions import FoundCompletions, completion_of
from toolkit.runs.listing.search import page_of, select_runs
from toolkit.runs.rank_grid import RankGrid
from toolkit.runs.spans import SpanTable
from toolkit.runs.store import (
    PENDING,
    CurveSegment,
    Feed,
    Health,
    MetricInfo,
    Refused,
    RunCard,
    RunList,
    RunMeta,
    RunQuery,
    Series,
    SessionStart,
    StoreState,
    TimeSpent,
    Trashed,
    UnknownRun,
)
from toolkit.timing.ledger import LedgerBuilder

STEPS = np.arange(50, dtype=np.float64)


class MemoryCompletions:
    """One completion, at one place."""

    ONE = completion_of(
        {"event": "completion", "global_step": 7, "prompt": "Why?", "completion": "Because.", "reward": 0.5},
        3,
    )

    def find(self, query, *, first=0, count=50, wait_s=0.3):
        return FoundCompletions(rows=(self.ONE,), matching=1, known=1)

    def at(self, place):
        return self.ONE if place == self.ONE.place else None

    def siblings(self, completion, *, limit=200):
        return ()


class MemoryStore:
    """Runs that exist in memory only; each falls from 1 to 0 in fifty steps."""

    def __init__(self, *names):
        self.labels = {name: Labels() for name in names}
        self.status = dict.fromkeys(names, "running")
        self.asked = []
        self.answers = []
        self.gone = {}
        self.found = []
        self.examined = 1.0
        self.health = Health(records=50, bytes_read=5_000)
        self.ranks_of_a_run = 1
        self.ranks_read = 1.0

    def list_runs(self, query=None):
        query = query or RunQuery()
        cards = [self.card(name) for name in self.labels]
        found = select_runs(cards, query, 1.7e9 + 60)
        page, shown = page_of(found, query)
        return RunList(
            cards=tuple(shown),
            places=("memory",),
            matching=len(found),
            page=page,
            statuses=Counter(card.status.name for card in cards if not card.archived),
            archived_statuses=Counter(card.status.name for card in cards if card.archived),
            tags=tuple(sorted({tag for card in cards for tag in card.tags})),
        )

    def card(self, key):
        if key not in self.labels:
            raise UnknownRun(key, list(self.labels)[:3])
        labels = self.labels[key]
        return RunCard(
            key=key,
            place=f"node7:/scratch/{key}",
            name=labels.display_name or key,
            status=Status(name=self.status[key], why="the store says so", sure=True),
            tags=labels.tags or (),
            archived=labels.archived,
            created=1.7e9,
            last_sign=1.7e9 + 50,
            step=49,
            max_steps=100,
            sessions=1,
        )

    def project_settings(self, project):
        return ProjectSettings()

    def set_project_settings(self, project, settings):
        raise Refused("nothing is kept")

    def trends(self, keys, *, points=40):
        return {key: [1.0, 0.5] for key in keys}

    def meta(self, key):
        manifest = Manifest(
            run_id="1",
            name=key,
            display_name=key,
            created=1.7e9,
            sessions=(Session(session=1, started=1.7e9, pid=1),),
            heartbeat=Heartbeat(time=1.7e9 + 50),
            control={"log_every_now": 10, "actions": ["save"]},
        )
        start = {"event": "start", "config": {"lr": 0.1, "name": key}}
        return RunMeta(
            card=self.card(key),
            manifest=manifest,
            labels=self.labels[key],
            start=start,
            environment={},
            writable=True,
        )

    def refresh(self, key, *, wait_s=2.0, rank=0):
        self.card(key)
        return self.health

    def refresh_all(self, keys, *, wait_s=2.0):
        return [self.refresh(key, wait_s=wait_s) for key in keys]

    def metrics(self, key, *, rank=0):
        return [
            MetricInfo(
                name=name, event="step", count=50, last=0.02, last_step=49, low=0.02, high=1.0, non_finite=0
            )
            for name in ("train_loss", "sec_per_step", "cpu_percent")
        ]

    def series(self, key, metric, *, axis="step", window=None, buckets=600, smoothing=0.0, rank=0):
        if metric not in ("train_loss", "sec_per_step", "cpu_percent"):
            return Series(metric=metric, axis=axis, segments=())
        segments = (CurveSegment(x=STEPS, y=1 - STEPS / 50, session=1),)
        return Series(metric=metric, axis=axis, segments=segments, drawn=50, total=50, low=0.02, high=1.0)

    def series_of(self, keys, metric, **options):
        return {key: self.series(key, metric, **options) for key in keys if key in self.labels}

    def sessions(self, key):
        return [SessionStart(session=1, first_step=0, first_time=1.7e9)]

    def manifest_sessions(self, key):
        return self.meta(key).manifest.sessions

    def recent(self, key, metric, count):
        return (1 - STEPS / 50)[-count:]

    def values_around(self, key, metric, moment, count):
        return (1 - STEPS / 50)[:count], (1 - STEPS / 50)[-count:]

    def examine(self, key, *, wait_s=0.3):
        return self.examined

    def findings(self, key):
        return self.found

    def time_spent(self, key, *, wait_s=0.05):
        return TimeSpent(ledger=LedgerBuilder().ledger(), fraction=1.0)

    def spans(self, key, *, wait_s=2.0, rank=0):
        return SpanTable()

    def span_records(self, key, places, *, rank=0):
        return [None] * len(places)

    def completions(self, key):
        return MemoryCompletions()

    def trace(self, key):
        return iter((b'{"traceEvents":[]}',))

    def means(self, key, metric, buckets):
        return 1 - STEPS / 50

    def table(self, key, metrics=None):
        return {"global_step": STEPS, "time": STEPS, "train_loss": STEPS}

    def present(self, key, metrics):
        return {name: np.ones(50, dtype=bool) for name in metrics}

    def events(self, key, kinds=None, *, limit=200):
        return [record for record in self.answers if kinds is None or record["event"] in kinds]

    def count_events(self, key):
        return {"step": 50}

    def ranks(self, key):
        return list(range(self.ranks_of_a_run))

    def rank_signs(self, key):
        return ()

    def rank_grid(self, key, metric, *, buckets=64, wait_s=2.0):
        if metric != "sec_per_step":
            return RankGrid(metric=metric, fraction_read=self.ranks_read)
        mean = np.full((self.ranks_of_a_run, 4), 0.5)
        mean[-1] = 0.75
        ranks = tuple(range(self.ranks_of_a_run))
        return RankGrid(metric=metric, ranks=ranks, mean=mean, high=mean, fraction_read=self.ranks_read)

    def read_file(self, key, relative, *, max_bytes):
        raise Refused("there are no files here")

    def record_lines(self, key, *, rank=0):
        return iter((b'{"event":"start"}\n',))

    def ask(self, key, request):
        self.asked.append((key, dict(request)))
        return f"request-{len(self.asked)}"

    def delivery(self, key, request_id):
        return PENDING

    def label(self, key, labels):
        self.labels[key] = labels

    def delete(self, key):
        self.gone[key] = self.labels.pop(key)
        return key

    def trash(self):
        return [Trashed(token=key, name=key, deleted=1.7e9, bytes_held=1) for key in self.gone]

    def restore(self, token):
        self.labels[token] = self.gone.pop(token)
        return token

    def empty_trash(self):
        self.gone, number = {}, len(self.gone)
        return number

    def state(self):
        feeds = (Feed(node="node7", lag_s=3.0, behind_bytes=2_000, clock_ahead_s=5.0),)
        return StoreState(
            kind="engine", places=("clickhouse://db.example/telemetry",), version="26.9", feeds=feeds
        )

    def cache_state(self):
        return None

    def empty_cache(self):
        return 0


@pytest.fixture
def store(logs, monkeypatch):
    found = MemoryStore("alpha", "beta")
    monkeypatch.setattr(session, "store", lambda: found)
    return found


def test_every_page_is_drawn_from_the_protocol_alone(store):
    tab = open_page("runs", "alpha", runs="alpha,beta")

    for page in EVERY_PAGE:
        assert is_well(tab.switch_page(f"views/{page}.py").run()), page
        if page in OF_A_RUN:
            assert "Running" in badges(tab), page


def test_its_runs_are_listed_and_its_curves_drawn(store):
    assert list(run_table(open_page("runs"))["Run"]) == ["alpha", "beta"]
    assert charts(open_page("metrics", "alpha", filter=".")) == 3


def test_it_is_asked_and_its_answer_is_shown(store):
    tab = open_page("overview", "beta")
    tab.sidebar.number_input[0].set_value(100)
    button(tab, "Apply").click().run()

    assert store.asked == [("beta", {"log_every": 100})]
    assert "pending" in said(tab)

    store.answers = [{"event": "control_change", "id": "request-1", "status": "applied", "global_step": 7}]
    tab.run()

    assert "log every 100: applied at step 7" in said(tab)


def test_it_keeps_labels_and_trash(store):
    store.status["alpha"] = "finished"
    choose(open_page("overview", "alpha"), "Archive")

    assert store.labels["alpha"] == replace(Labels(), archived=True)

    tab = open_page("overview", "alpha")
    choose(tab, "Delete")

    assert list(store.labels) == ["beta"]

    settings = open_page("settings_page")
    button(settings, "Restore").click().run()

    assert sorted(store.labels) == ["alpha", "beta"]


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (Health(records=9, bad_count=2), "2 lines could not be read."),
        (Health(records=9, replaced_at=1.7e9), "The log file was replaced at"),
        (Health(records=9, lost_records=1_234, lost_reasons=("disk full",)), "lost 1,234 records: disk full"),
        (Health(problem="metrics.jsonl: Input/output error"), "metrics.jsonl: Input/output error"),
        (Health(records=9, bytes_read=25, bytes_pending=75), "Reading the log: 25%, 9 records so far"),
        (Health(records=9, lag_s=90.0), "The records are as of 1 m 30 s ago."),
        (Health(records=9, lag_s=90.0, behind_bytes=2_000_000), "ago, 2 MB behind."),
        (Health(records=9, lag_s=2.0, gaps=1), "Lines are missing at one place."),
    ],
)
def test_what_its_reading_showed_is_on_the_page(store, health, words):
    store.health = health

    tab = open_page("metrics", "alpha")

    assert is_well(tab)
    assert words in said(tab)


def test_what_its_detectors_find_is_shown_and_how_far_they_are(store):
    store.examined = 0.4
    store.found = [
        Finding(
            id="1-spike-train_loss-7",
            kind="spike",
            severity="warning",
            metric="train_loss",
            start_step=7,
            end_step=None,
            noticed_step=8,
            message="train_loss jumped.",
        )
    ]

    tab = open_page("alerts", "alpha")

    assert is_well(tab)
    assert "Examined 40% of the records so far" in said(tab)
    assert "Loss spike" in headings(tab)
    assert "train_loss jumped." in said(tab)


def test_it_says_what_it_is_and_has_no_cache_to_clear(store):
    tab = open_page("settings_page")

    assert is_well(tab)
    assert "Engine" in headings(tab)
    assert "clickhouse://db.example/telemetry" in said(tab)
    assert list(tab.dataframe[0].value["node"]) == ["node7"]
    assert list(tab.dataframe[0].value["clock"]) == ["+5.0 s"]
    assert "Cache" not in headings(tab)


def test_where_its_runs_are_is_a_place_and_not_a_folder_of_this_machine(store):
    dialog = choose(open_page("overview", "alpha"), "Link and location…")

    assert "node7:/scratch/alpha" in said(dialog)

    store.status["alpha"] = "unreadable"
    store.health = Health()
    tab = open_page("overview", "alpha")

    assert is_well(tab)
    assert "node7:/scratch/alpha" in said(tab)
    assert "chmod" not in said(tab)


def test_its_slowest_rank_is_named_once_all_are_read_and_before(store):
    store.ranks_of_a_run, store.ranks_read = 700, 0.25

    tab = open_page("system", "alpha")

    assert is_well(tab)
    assert "Reading the records of all ranks: 25%" in said(tab)
    assert "**Rank 699 is the slowest**: 0.75 s, 1.5 times as long as the median rank." in said(tab)
    assert "A row shows 3 ranks" in said(tab)


def test_a_store_whose_run_vanishes_says_so(store):
    tab = open_page("overview", "alpha")
    store.delete("alpha")

    tab.run()

    assert is_well(tab)
    assert "There is no run called 'alpha'." in said(tab)


def test_a_store_that_loses_all_runs_shows_the_lines_to_paste(store):
    tab = open_page("overview", "alpha")
    store.labels.clear()

    tab.run()

    assert is_well(tab)
    assert "No runs yet" in said(tab)
