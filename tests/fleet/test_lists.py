"""A list of runs is the same from the engine as from the folders: for every search, order, filter and page."""

import math
import random
import uuid
from dataclasses import replace

import pytest

from tests.fleet.engines import DATABASE
from tests.fleet.shipped_runs import id_of, log_run, make_run, ship
from tests.lengths import is_long
from tests.runs.sources.store_answers import comparable
from tests.waiting import wait_until
from toolkit.telemetry.fleet.engine import Engine, EngineError, UnreachableError
from toolkit.telemetry.fleet.schema import set_up
from toolkit.telemetry.runfolder.labels import Labels, write_labels
from toolkit.telemetry.runfolder.manifest import Evaluation, read_manifest, write_manifest
from toolkit.telemetry.runs.sources.clickhouse import runs as engine_runs
from toolkit.telemetry.runs.sources.clickhouse.link import EngineLink
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.store import RunQuery

_RUNS = 40
_QUERIES = 1_500 if is_long() else 40
_NAMES = ("base", "run-2", "run-10", "Ärger 7", "straße", "it's \\' OR 1=1", "run_2.5%", "a*b", "42")
_TEXTS = ("adamw8bit", "AdamW10", "SGD", "2026-01-02", "true", "7")
_WORDS = ("run", "Ä", "ss", "*a*", "run-?", "key-00[13]", "ok", "mine*", "speech", "%", "\\'", "1", "node")
_TAGS = ("baseline", "Sweep 1", "sweep 2", "ok", "x:y")


@pytest.fixture(scope="module")
def fleet(engine, tmp_path_factory):
    """Runs of every kind in folders, and in a database of their own."""
    draw, logs = random.Random(7), tmp_path_factory.mktemp("lists")
    for number in range(_RUNS):
        _write(logs, number, draw)
    address = replace(engine.address(), database=f"lists_{uuid.uuid4().hex[:8]}")
    set_up(address)
    ship(address, logs)
    yield LocalStore([logs], cache_dir=None), ClickHouseStore(address, patience_s=120.0)
    connection = Engine(replace(address, database=DATABASE))
    connection.query(f"DROP DATABASE {address.database}")
    connection.close()


def _write(logs, number, draw):
    ema = draw.choice(("train.ema_decay", "model.ema_decay", "EMA_decay"))
    config = {
        **({"learning_rate": draw.choice((1e-4, 2e-4, 1, 3))} if number % 7 else {}),
        **({ema: draw.random()} if number % 3 else {}),
        **({"optimizer": draw.choice(_TEXTS)} if number % 5 else {}),
        **({"bf16": draw.random() < 0.5} if number % 4 else {}),
        **({"x.y`z": draw.choice((5, "fünf"))} if number % 6 == 0 else {}),
    }
    evaluations = {
        name: Evaluation(
            last=draw.choice((math.nan, 0.1, 3.0)), best=draw.choice((None, 0.1)), direction="min"
        )
        for name in ("val_loss", "epoch/acc", "Val_Acc")
        if draw.random() < 0.7
    }
    summary = {
        "max_steps": 100,
        "epoch": number / 3,
        "note": "Text 3",
        "samples_per_sec": draw.choice((None, 1.5, 12)),
        **({"findings_critical": number % 3 % 2, "findings_warning": number % 5} if number % 7 else {}),
    }
    folder = make_run(
        logs,
        f"key-{number:03}",
        draw.choice((0, 3, 20)),
        run_id=f"key-{number:03}",
        project=draw.choice((None, "faces", "Speech")),
        tags=tuple(draw.sample(_TAGS, draw.randrange(3))),
        config=config,
        evaluations=evaluations,
        summary=summary,
    )
    manifest = read_manifest(folder)
    created = manifest.created + number // 2
    session = replace(
        manifest.latest,
        status=draw.choice(("finished", "failed", "stopped", "strange")),
        ended=created + draw.choice((0, 60, 7_200)),
        host=draw.choice(("", "node1", "Node2")),
    )
    write_manifest(
        folder,
        replace(
            manifest, display_name=draw.choice(_NAMES), created=created, sessions=(session,), heartbeat=None
        )
        if number % 8
        else replace(manifest, display_name=draw.choice(_NAMES), created=created, sessions=(session,)),
    )
    if number % 4 == 0:
        write_labels(
            folder,
            Labels(
                display_name=draw.choice((None, "Renamed 3")),
                tags=draw.choice((None, (), ("mine 10",), ("mine 2", "ok"))),
                archived=draw.random() < 0.5,
            ),
        )


_FIELDS = """
    alerts name tag status project host tool started updated loss step max_steps epoch duration progress
    samples_per_sec sessions lr learning_rate ema_decay optimizer bf16 val_loss acc val_acc note x.y`z train_loss
    no_such_name
""".split()
_ORDERS = ("last sign", "started", "name", "loss", "progress", "duration", "status", "step", "age", *_FIELDS)
_VALUES = "0.1 1 0.2 adam true sgd 7 nan e finished node faces run mine 50% 1h 2026 critical 3".split()


def _query(draw):
    terms = []
    for _ in range(draw.randrange(3)):
        prefix = draw.choice(("", "", "", "best:", "last:", "config:", "summary:"))
        sign = draw.choice(("<", "<=", ">", ">=", "=", "!=", ":"))
        compared = f"{prefix}{draw.choice(_FIELDS)}"
        if not prefix or draw.random() < 0.7:
            compared = f"{compared if sign != ':' else draw.choice(_FIELDS)}{sign}{draw.choice(_VALUES)}"
        terms.append(draw.choice(("", "", "-")) + draw.choice((draw.choice(_WORDS), compared)))
    order = draw.choice(_ORDERS)
    return RunQuery(
        project=draw.choice((None, None, None, "faces")),
        text=" ".join(terms),
        statuses=draw.choice(((), (), ("finished",), ("failed", "lost"))),
        archived=draw.random() < 0.6,
        sort=draw.choice(("", "-")) + draw.choice(("", "", "config:", "best:", "last:")) + order,
        page=draw.choice((1, 1, 2, 99)),
        per_page=draw.choice((None, 5, 10, 0)),
    )


def _answer(store, query):
    try:
        found = store.list_runs(query)
    except ValueError as error:
        return type(error).__name__
    assert not found.is_stale, found.problems
    return {
        "keys": [card.key if card.id else card.name for card in found.cards],
        "counts": (
            found.matching,
            found.page,
            found.total,
            dict(found.statuses),
            dict(found.archived_statuses),
        ),
        "names": (found.tags, found.projects),
        # The folders have more values of a run at hand, for a search that needs them.
        "cards": [comparable(replace(card, summary={})) for card in found.cards],
    }


def test_every_query_finds_the_same_runs_in_the_same_order(fleet):
    local, remote = fleet
    seed = random.randrange(10**9) if is_long() else 3
    draw = random.Random(seed)
    assert [comparable(card) for card in remote.list_runs().cards] == [
        comparable(card) for card in local.list_runs().cards
    ]
    for _ in range(_QUERIES):
        query = _query(draw)
        expected, found = _answer(local, query), _answer(remote, query)
        if expected == "QueryError" and ("train_loss" in query.text or "lr" in query.text):
            # The folders read the last values of metrics only for a search that needs them.
            continue
        if isinstance(expected, str) or isinstance(found, str):
            assert found == expected, (seed, query)
            continue
        differing = [part for part in expected if found[part] != expected[part]]
        assert not differing, (seed, query, [(expected[part], found[part]) for part in differing[:1]])


def test_a_run_whose_log_is_cut_is_said_to_be_cut(engine, logs):
    folder = log_run(logs)
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:15]))
    ship(engine, logs)

    card = ClickHouseStore(engine.address(), patience_s=120.0).list_runs().find(id_of(folder))

    assert card.is_cut
    assert f"{len(lines) - 15} of {len(lines)} records are missing" in card.problem


def test_every_list_that_was_shown_is_asked_for_again_after_a_change(fleet):
    _, remote = fleet
    queries = [RunQuery(archived=False, sort=order) for order in ("name", "loss", "last sign")]
    shown = [len(remote.list_runs(query).cards) for query in queries]
    other = ClickHouseStore(remote._link.address, patience_s=120.0)
    other.label("key-001", Labels(archived=True))
    for query, before in zip(queries, shown, strict=True):
        wait_until(lambda query=query, before=before: len(remote.list_runs(query).cards) == before - 1)
        assert remote.list_runs(query).archived_statuses != {}


@pytest.mark.parametrize("slow_part", ["OFFSET", "GROUP BY status", "distinctJSONPaths"])
def test_a_list_that_takes_the_engine_too_long_says_how_far_it_looked(fleet, monkeypatch, slow_part):
    _, remote = fleet
    # What a list was a second ago is shown again.
    remote._runs.look_again()
    whole = remote.list_runs(RunQuery(text="name:e"))
    rows = EngineLink.rows

    def slow(self, sql):
        has_limit = "max_execution_time" in sql and "max_execution_time = 0.0" not in sql
        if slow_part in sql and "created >= toDate" not in sql:
            error = EngineError("Timeout exceeded") if has_limit else UnreachableError("no answer")
            error.code = 159 if has_limit else None
            raise error
        return rows(self, sql)

    monkeypatch.setattr(EngineLink, "rows", slow)
    for days, found in ((36_500, whole.cards), (1, ())):
        monkeypatch.setattr(engine_runs, "_LOOKED_AT_DAYS", days)
        remote._runs.look_again()

        part = remote.list_runs(RunQuery(text="name:e"))

        assert part.problems == (
            f"To look at all runs takes the engine too long: it looked at those of the last {days} days.",
        )
        assert [card.key for card in part.cards] == [card.key for card in found]


def test_the_engine_ends_a_question_that_takes_too_long(ask):
    with pytest.raises(EngineError) as refused:
        ask.rows(
            "SELECT count() FROM numbers(1e12) WHERE sipHash64(number) = 1 SETTINGS max_execution_time = 0.2"
        )

    assert refused.value.code == 159
