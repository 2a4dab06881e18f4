"""SQL over runs: every record with its values, nothing but reading, and mistakes in one sentence."""

from __future__ import annotations

import json
import math
import os
from collections import Counter

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from tests.importers import samples
from tests.made_runs import append, step_record, write_run
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.importers.detect import find_sources
from toolkit.telemetry.importers.source import named_columns, read_all
from toolkit.telemetry.runfolder.control import write_request
from toolkit.telemetry.runfolder.read_run import read_run
from toolkit.telemetry.runs.columns import run_log
from toolkit.telemetry.runs.tables.query import QueryError, query
from toolkit.telemetry.runs.tables.run_tables import TABLES, UNANSWERED, RunTables

SIZES = {"width", "height", "size", "ncols", "nrows"}
ODD = 'loss"; drop table runs; --'


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Two runs: one with a NaN, two sessions, another rank and an unanswered request; one of a single step."""
    root = tmp_path_factory.mktemp("logs")
    options = {"log_dir": root, "log_every": 1, "system": False}
    with TelemetryLogger("resumed", **options) as log:
        log.log_start(config={"lr": 1e-3, "optimizer": "adamw"})
        for step in range(1, 21):
            with log.span("data_loading"):
                pass
            loss = math.nan if step == 7 else 1 / step
            log.log_step(step, train_loss=loss, **{ODD: math.inf, "Step": -step})
            if step % 10 == 0:
                log.log_eval(step, val_loss=2 / step)
    with TelemetryLogger("resumed", resume=True, **options) as log:
        for step in range(16, 31):
            log.log_step(step, train_loss=1 / step)
        log.log_epoch(1, 30, accuracy=0.5)
    ranks = root / "resumed" / "ranks"
    ranks.mkdir()
    others = [{**step_record(step, train_loss=float(step)), "rank": 1} for step in range(5)]
    append(root / "resumed", others, path=ranks / "00001.jsonl")
    write_request(root / "resumed", log_every=100)
    with TelemetryLogger("short", **options) as log:
        log.log_start(config={"lr": 1e-4, "optimizer": "adamw"})
        log.log_step(1, loss=0.25)
    return root


@pytest.fixture(scope="module")
def tables(logs, tmp_path_factory):
    return RunTables([logs], cache_dir=tmp_path_factory.mktemp("cache"))


def rows(text, tables, **options):
    return query(text, tables, **options).to_pylist()


def without_non_finite(record):
    return {
        name: value
        for name, value in record.items()
        if isinstance(value, str) or value == value not in (None, math.inf)
    }


def same(one, other):
    return one == other or (one != one and other != other)


def test_every_record_is_there_with_the_values_that_read_run_gives(logs, tables):
    for rank, count in ((0, 35), (1, 5)):
        records = [
            record for record in read_run(logs / "resumed", rank=rank).records if record["event"] == "step"
        ]
        found = rows(f"select * from steps where run = 'resumed' and rank = {rank}", tables)

        assert len(found) == len(records) == count
        for row, record in zip(found, records, strict=True):
            assert (row["step"], row["session"]) == (record["global_step"], record["session"])
            assert row["time"].timestamp() == pytest.approx(record["time"], abs=1e-5)
            assert same(row["train_loss"], record["train_loss"])
            assert same(row["loss"], record["train_loss"])
            assert (row[ODD], row["Step_2"]) == (record.get(ODD), record.get("Step"))
            with (logs / "resumed" / row["file"]).open("rb") as file:
                file.seek(row["byte_offset"])
                assert without_non_finite(json.loads(file.readline())) == without_non_finite(record)


def test_resumed_sessions_evaluations_and_names_of_the_loss(tables):
    abandoned = rows(
        "select session, list(step order by step) s from steps where superseded group by 1", tables
    )
    evals = rows('select event, step, val_loss, "epoch/accuracy" a from evals order by step, event', tables)
    losses = rows("select run, min(loss) low from steps where rank = 0 group by run order by run", tables)

    assert abandoned == [{"session": 1, "s": [16, 17, 18, 19, 20]}]
    assert [(row["event"], row["step"], row["val_loss"], row["a"]) for row in evals] == [
        ("eval", 10, 0.2, None),
        ("eval", 20, 0.1, None),
        ("epoch", 30, None, 0.5),
    ]
    assert losses == [{"run": "resumed", "low": 1 / 30}, {"run": "short", "low": 0.25}]


def test_runs_settings_spans_findings_and_requests(logs, tables):
    best = rows(
        "select number rate, min(loss) from runs join settings using (run) where setting = 'learning_rate' "
        "group by rate order by rate",
        tables,
    )
    spans = rows("select name, count(*) n, min(seconds) >= 0 ok from spans group by name", tables)
    findings = rows("select run, kind, metric, start_step from findings", tables)
    requests = rows("select run, status, asked, step from requests", tables)

    assert [row["rate"] for row in best] == [1e-4, 1e-3]
    assert [(row["name"], row["ok"]) for row in spans] == [("data_loading", True)]
    assert {"run": "resumed", "kind": "nan", "metric": "train_loss", "start_step": 7} in findings
    assert requests == [{"run": "resumed", "status": UNANSWERED, "asked": '{"log_every": 100}', "step": None}]
    assert rows("select path from runs where run = 'short'", tables) == [{"path": str(logs / "short")}]


@pytest.mark.parametrize("name", TABLES)
def test_the_columns_that_a_statement_names_are_those_of_the_whole_table(tables, name):
    whole = rows(f"from {name}", tables)
    some = [column for column in tables.columns(name) if column != "run"][:12]
    named = ", ".join('"{}"'.format(column.replace('"', '""')) for column in some)

    part = rows(f"select {named} from {name}", tables)

    assert [
        [same(row[column], all_[column]) for column in some] for row, all_ in zip(part, whole, strict=True)
    ] == [[True] * len(some)] * len(whole)


@pytest.mark.parametrize(
    "text",
    [
        "copy steps to '{place}'",
        "copy (select 1) to '{place}'",
        "attach '{place}'",
        "install httpfs",
        "load httpfs",
        "pragma threads = 8",
        "set enable_external_access = true",
        "set memory_limit = '1TB'",
        "create table t as select 1",
        "drop view runs",
        "delete from runs",
        "export database '{place}'",
        "select 1; copy steps to '{place}'",
        "select * from read_csv('{secret}')",
        "select * from read_text('{secret}')",
        "select * from '{secret}'",
        "select * from glob('{secret}')",
        "select * from query('copy steps to ''{place}''')",
        "select getenv('HOME')",
        "select * from logs",
        "select * from sniff_csv('{secret}')",
        "select * from parquet_scan('{secret}')",
        "explain analyze copy steps to '{place}'",
        "call pragma_version()",
        "from duckdb_settings()",
        "select * from range(3), duckdb_memory()",
        "with a as (from pg_settings) from a",
        "from information_schema.tables",
        "from sqlite_master",
        "from query_table(['duck' || 'db_tables'])",
        "select current_setting('threads')",
    ],
)
def test_nothing_but_the_tables_can_be_read_and_nothing_written(tables, tmp_path, text):
    secret, place = tmp_path / "secret.csv", tmp_path / "place"
    secret.write_text("a\n1\n")

    with pytest.raises(QueryError) as refused:
        query(text.format(secret=secret, place=place), tables)

    assert "\n" not in str(refused.value)
    assert os.listdir(tmp_path) == ["secret.csv"]


@pytest.mark.parametrize(
    "value", ["'infinity'::date", "{'a': 'infinity'::date}", "'101'::bit", "interval '3 years'"]
)
def test_a_value_that_python_has_not_got_is_asked_for_as_a_text(tables, value):
    with pytest.raises(
        QueryError, match=r"^odd cannot be shown as it is: ask for it as a text, with ::varchar$"
    ):
        query(f"select {value} as odd, 1 as n", tables)
    assert rows(f"select ({value})::varchar as odd", tables)[0]["odd"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("selec 1", "line 1, column 1"),
        ("select loss\nfrom steps wher x", "line 2"),
        (
            "select train_los from steps",
            'column "train_los" not found in FROM clause! Candidate bindings: "train_loss"',
        ),
        ("select * from step", 'Table with name step does not exist! Did you mean "steps"?'),
        ("select ' from steps", "unterminated"),
        ("", "0 statements"),
        ("select 1; select 2", "2 statements"),
        ("select \udcff from steps", "line 1"),
        ("select error('what\nit says')", "what it says"),
        ("select step + run from steps", "explicit type casts."),
    ],
)
def test_a_mistake_gets_one_sentence(tables, text, says):
    with pytest.raises(QueryError) as wrong:
        query(text, tables)

    assert says in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_a_statement_ends_in_time_and_memory(tables):
    with pytest.raises(QueryError, match=r"took longer than 0\.2 s"):
        query(
            "select count(*) from range(10000000) a, range(10000000) b where (a.range * b.range) % 7 = 3",
            tables,
            timeout_s=0.2,
        )
    with pytest.raises(QueryError, match="more than 30 MB of memory"):
        query("select list(range) from range(100000000)", tables, memory_mb=30)
    with pytest.raises(QueryError, match="more than 3 MB"):
        query("select range from range(1000000000000)", tables, memory_mb=3)
    many = ", ".join(map(str, range(3_000)))
    assert rows(f"select loss from steps where run = 'short' and step in ({many})", tables) == [
        {"loss": 0.25}
    ]
    with pytest.raises(QueryError, match="depth limit"):
        query(f"select {'+'.join(['loss'] * 2_000)} from steps", tables)


def test_the_name_of_a_column_does_not_depend_on_other_runs(tmp_path):
    for name, metrics in (
        ("both", {"Acc": 1.0, "acc": 2.0}),
        ("upper", {"Acc": 3.0, "RUN": 4.0}),
        ("none", {}),
    ):
        write_run(tmp_path / "logs", name, sessions=())
        append(tmp_path / "logs" / name, [step_record(1, **metrics)])
    (tmp_path / "logs" / "none" / "metrics.jsonl").open("ab").write(b"not a record\n")
    tables = RunTables([tmp_path / "logs", tmp_path / "logs" / "both"], cache_dir=tmp_path / "cache")
    found = {
        row["run"]: (row["acc"], row["Acc_2"], row["RUN_2"])
        for row in rows(
            "select run, acc, acc_2, run_2 from steps where step not in (select step from evals)", tables
        )
    }

    # A list that is made again starts with no notes.
    notes = list(tables.notes)

    assert found == {"both": (2.0, 1.0, None), "upper": (3.0, None, 4.0), "none": (None, None, None)}
    assert notes == ["none: 1 lines are not records"]
    assert rows("select acc from steps where run = 'upper'", tables) == [{"Acc": 3.0}]


def test_the_second_question_reads_on_where_logs_grew(tmp_path, monkeypatch):
    monkeypatch.setattr(run_log, "MIN_CACHED_BYTES", 1000)
    for name in "abc":
        write_run(tmp_path / "logs", name, sessions=(range(400),))
    text, answers = "select * exclude (file) from steps order by run, session, step", []

    def ask():
        tables = RunTables([tmp_path / "logs"], cache_dir=tmp_path / "cache")
        answers.append(rows(text, tables))
        return [tables._store.refresh(name).from_cache for name in "abc"]

    assert ask() == [False, False, False]
    assert ask() == [True, True, True]
    append(tmp_path / "logs" / "b", [step_record(401, train_loss=0.5)])
    assert ask() == [True, True, True]
    (tmp_path / "logs" / "c" / "metrics.jsonl").write_bytes(b"")
    assert ask() == [True, True, False]

    assert answers[0] == answers[1]
    assert len(answers[0]) == 1200
    assert [row["train_loss"] for row in answers[2] if row["step"] == 401] == [0.5]
    assert len(answers[3]) == 801


def test_runs_of_other_tools_have_every_point_of_their_files(tmp_path):
    root, seen, points = samples.ours(), set(), 0
    for name in samples.names(root):
        sources = find_sources(root / name).runs if name.split("/")[0] not in seen else []
        tables = RunTables([root / name], cache_dir=tmp_path) if sources else None
        found = (
            {table: tables.table(table).to_pylist() for table in ("steps", "evals", "system")}
            if tables
            else {}
        )
        for source in sources:
            seen.add(name.split("/")[0])
            if source.info.deleted:
                continue
            key = f"{source.info.format}~{source.info.source_id[:12]}"
            [run] = [label for label, card in tables.runs().items() if card.key == key]
            logged = Counter()
            for batch in read_all(source):
                for metric, column in named_columns(source.info, batch):
                    if not column.repeated and metric.rpartition(".")[2] not in SIZES:
                        label = f"{metric}_2" if metric in ("step", "epoch") else metric
                        logged.update((label, repr(value)) for value in column.values)
            names = {label for label, _ in logged}
            shown = Counter(
                (column, repr(value))
                for rows_of_table in found.values()
                for row in rows_of_table
                if row["run"] == run
                for column, value in row.items()
                if column in names and value is not None
            )
            assert shown == logged, (name, run)
            points += logged.total()
    assert len(seen) > 8
    assert points > 1000
