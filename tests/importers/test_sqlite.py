"""Databases of other programs: nothing in their folders changes, and nothing in them is run."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
from types import SimpleNamespace

import pytest

from tests.importers.reading import cold, only_run, points_in
from tests.importers.samples import fingerprint
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.importers import budget
from toolkit.telemetry.importers.detect import find_sources
from toolkit.telemetry.importers.framing import sqlite_view
from toolkit.telemetry.importers.framing.sqlite_view import DatabaseError, opened
from toolkit.telemetry.runs.listing.foreign_runs import ForeignRuns


def ai_toolkit(path, *, wal=True):
    """Return a connection to a database with ai-toolkit's tables."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = sqlite3.connect(path, isolation_level=None)
    if wal:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.execute("CREATE TABLE IF NOT EXISTS steps (step INTEGER PRIMARY KEY, wall_time REAL NOT NULL)")
    writer.execute("CREATE TABLE IF NOT EXISTS metric_keys (key TEXT PRIMARY KEY)")
    writer.execute(
        "CREATE TABLE IF NOT EXISTS metrics (step INTEGER NOT NULL, key TEXT NOT NULL, value_real REAL, "
        "value_text TEXT, PRIMARY KEY (step, key))"
    )
    return writer


def log(writer, steps, value=1.0):
    writer.execute("BEGIN")
    for step in steps:
        writer.execute("INSERT INTO steps VALUES (?, ?)", (step, 1_700_000_000.0 + step))
        writer.execute("INSERT INTO metrics VALUES (?, 'loss', ?, NULL)", (step, value / (step + 1)))
    writer.execute("COMMIT")


def steps_of(found):
    return [step for step, _, _ in found.get((0, 0, "loss"), [])]


def test_a_database_that_is_being_written_is_read_as_it_grows_and_nothing_else_there_changes(tmp_path):
    path = tmp_path / "run" / "loss_log.db"
    writer = ai_toolkit(path)
    log(writer, range(10))
    source = only_run(path.parent)
    found, cursor = {}, None
    for last in range(20, 60, 10):
        log(writer, range(last - 10, last))
        before = fingerprint(path.parent)
        batch = source.read(cursor)
        assert fingerprint(path.parent) == before
        points_in([batch], found)
        cursor = batch.cursor
        assert not batch.replaced
        assert steps_of(found) == list(range(last))
        again = source.read(cursor)
        assert again.columns == []
    assert len(points_in([batch])[0, 0, "loss"]) == 10
    writer.close()


def test_rows_that_a_resume_deleted_are_noticed(tmp_path):
    path = tmp_path / "loss_log.db"
    writer = ai_toolkit(path)
    log(writer, range(30))
    source = only_run(tmp_path)
    cursor = source.read(None).cursor
    writer.execute("DELETE FROM metrics WHERE step >= 20")
    writer.execute("DELETE FROM steps WHERE step >= 20")
    log(writer, range(20, 40), value=5.0)

    batch = source.read(cursor)

    assert batch.replaced
    assert steps_of(points_in([batch])) == list(range(40))
    assert source.info.notes == ["rows that were read before were deleted or changed: it was read again"]
    writer.close()


def test_a_transaction_that_was_not_committed_is_not_shown(tmp_path):
    path = tmp_path / "loss_log.db"
    writer = ai_toolkit(path, wal=False)
    log(writer, range(5))
    writer.execute("BEGIN")
    writer.execute("INSERT INTO metrics VALUES (9, 'loss', 1.0, NULL)")
    before = fingerprint(tmp_path)

    assert steps_of(cold(tmp_path)) == list(range(5))
    assert fingerprint(tmp_path) == before
    writer.close()


MAGIC = bytes.fromhex("d9d505f920a163d7")


@pytest.mark.parametrize(
    "command", [["ls"], ["show"], ["export", "--to", "run-folder", "--out", "OUT"], None]
)
def test_a_rollback_journal_that_names_another_file_does_not_delete_it(
    command, tmp_path, tmp_path_factory, capsys
):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    path = tmp_path / "log" / "run" / "loss_log.db"
    writer = ai_toolkit(path, wal=False)
    log(writer, range(5))
    writer.close()
    header = MAGIC + struct.pack(">5I", 0, 1, path.stat().st_size // 4096, 512, 4096)
    name = os.fsencode(victim)
    trailer = struct.pack(">I", 2**30 // 4096 + 1) + name + struct.pack(">2I", len(name), sum(name)) + MAGIC
    path.with_name("loss_log.db-journal").write_bytes(header.ljust(512, b"\0") + trailer)
    before = fingerprint(tmp_path)

    if command is None:
        page = ForeignRuns([tmp_path / "log"], None)
        (run,) = wait_until(lambda: page.all()[0])
        wait_until(lambda: run.summary.step == 4)
    else:
        out = str(tmp_path_factory.mktemp("out") / "logs")
        main([command[0], str(path.parent.parent), *(out if word == "OUT" else word for word in command[1:])])
        assert "run" in capsys.readouterr().out

    assert steps_of(cold(tmp_path / "log")) == list(range(5))
    assert fingerprint(tmp_path) == before
    source = only_run(path.parent)
    source.read(None)
    assert "names another file" in " ".join(source.info.notes)


def test_a_transaction_that_a_killed_writer_had_half_written_is_undone(tmp_path):
    path = tmp_path / "loss_log.db"
    writer = ai_toolkit(path, wal=False)
    writer.execute("PRAGMA cache_size = 1")
    log(writer, range(2_000))
    writer.execute("BEGIN")
    writer.execute("UPDATE metrics SET value_real = 7.0")
    writer.execute("INSERT INTO metrics SELECT step + 10000, key, 8.0, NULL FROM metrics")
    # What the cache has no room for is in the database before the commit; the journal undoes it.
    shutil.copytree(tmp_path, tmp_path / "killed")
    writer.close()
    assert b"loss" in (tmp_path / "killed" / "loss_log.db-journal").read_bytes()
    before = fingerprint(tmp_path / "killed")

    found = cold(tmp_path / "killed")

    assert steps_of(found) == list(range(2_000))
    assert {value for _, _, value in found[0, 0, "loss"]} == {repr(1.0 / (step + 1)) for step in range(2_000)}
    assert fingerprint(tmp_path / "killed") == before
    # SQLite itself comes to the same.
    itself = sqlite3.connect(tmp_path / "killed" / "loss_log.db")
    assert itself.execute("SELECT count(*), max(value_real) FROM metrics").fetchone() == (2_000, 1.0)
    itself.close()


def test_only_select_on_the_named_tables_is_allowed(tmp_path):
    path = tmp_path / "loss_log.db"
    writer = ai_toolkit(path, wal=False)
    writer.execute("CREATE TABLE secret (value TEXT)")
    writer.close()
    before = fingerprint(tmp_path)
    with opened(path, ("metrics",)) as database:
        for query in (
            "SELECT value FROM secret",
            f"ATTACH '{tmp_path / 'new.db'}' AS other",
            "DELETE FROM metrics",
            "SELECT load_extension('x')",
            "PRAGMA journal_mode = DELETE",
            "SELECT randomblob(10) FROM metrics",
        ):
            with pytest.raises(DatabaseError):
                list(database.rows(query))
        assert database.one("SELECT count(*) FROM metrics") == 0
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize(
    "trap",
    [
        "CREATE VIEW metrics AS SELECT 1 AS step, 'loss' AS key, 1.0 AS value_real, NULL AS value_text",
        "CREATE VIRTUAL TABLE metrics USING fts5(step, key, value_real, value_text)",
    ],
)
def test_a_view_or_a_virtual_table_is_not_read(trap, tmp_path):
    path = tmp_path / "loss_log.db"
    writer = ai_toolkit(path, wal=False)
    writer.execute("DROP TABLE metrics")
    try:
        writer.execute(trap)
    except sqlite3.OperationalError:
        pytest.skip("this SQLite has no fts5")
    writer.close()

    assert find_sources(tmp_path).runs == []


def test_a_database_too_large_to_copy_is_refused_with_the_reason(tmp_path, monkeypatch):
    path = tmp_path / "loss_log.db"
    writer = ai_toolkit(path)
    log(writer, range(5))
    monkeypatch.setattr(sqlite_view, "LARGEST_COPY", 1000)
    source = only_run(tmp_path)

    batch = source.read(None)

    assert batch.columns == []
    assert "too large to copy" in " ".join(source.info.notes)
    writer.close()


def test_a_link_is_not_a_database(tmp_path):
    ai_toolkit(tmp_path / "elsewhere" / "loss_log.db", wal=False).close()
    (tmp_path / "run").mkdir()
    os.symlink(tmp_path / "elsewhere" / "loss_log.db", tmp_path / "run" / "loss_log.db")

    assert find_sources(tmp_path / "run").runs == []
    with pytest.raises(OSError, match="symbolic link"):
        with opened(tmp_path / "run" / "loss_log.db", ("metrics",)):
            pass


def mlflow(path, *, has_nan=True):
    """Write a database with MLflow's tables, of which the oldest have fewer columns."""
    writer = sqlite3.connect(path, isolation_level=None)
    flag = ", is_nan BOOLEAN NOT NULL" if has_nan else ""
    writer.executescript(
        f"""
        CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name TEXT, lifecycle_stage TEXT);
        CREATE TABLE runs (run_uuid TEXT PRIMARY KEY, name TEXT, experiment_id INTEGER, status TEXT,
            start_time BIGINT, end_time BIGINT, lifecycle_stage TEXT);
        CREATE TABLE metrics (key TEXT, value FLOAT, timestamp BIGINT, run_uuid TEXT, step BIGINT{flag});
        CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);
        CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT);
        INSERT INTO experiments VALUES (1, 'lora', 'active');
        INSERT INTO runs VALUES ('aa', 'first', 1, 'FINISHED', 0, 5000, 'active');
        INSERT INTO runs VALUES ('bb', 'second', 1, 'RUNNING', 0, NULL, 'deleted');
        INSERT INTO params VALUES ('lr', '0.1', 'aa');
        INSERT INTO tags VALUES ('mlflow.parentRunId', 'bb', 'aa'), ('mlflow.runName', 'named', 'aa');
        INSERT INTO tags VALUES ('team', 'x', 'aa');
        """
    )
    for step in range(4):
        row = ("loss", 1.0 / (step + 1), 1000 * step, "aa", step, *((step == 2,) if has_nan else ()))
        writer.execute(f"INSERT INTO metrics VALUES ({', '.join('?' * len(row))})", row)
    return writer


@pytest.mark.parametrize("has_nan", [True, False])
def test_runs_of_an_mlflow_database(has_nan, tmp_path):
    writer = mlflow(tmp_path / "mlflow.db", has_nan=has_nan)
    first, second = sorted(find_sources(tmp_path).runs, key=lambda source: source.info.run_id)
    batch = first.read(None)

    (column,) = batch.columns
    assert list(column.steps) == [0, 1, 2, 3]
    assert list(column.times) == [0.0, 1.0, 2.0, 3.0]
    assert [value != value for value in column.values] == [False, False, has_nan, False]
    assert (first.info.name, first.info.group, first.info.parent) == ("named", "lora", "bb")
    assert (first.info.config, first.info.tags) == ({"lr": "0.1"}, ["team=x"])
    assert (first.status(0).state, first.status(0).ended) == ("finished", 5.0)
    assert (second.info.deleted, second.read(None).columns, second.status(0).state) == (True, [], "running")

    writer.execute(f"INSERT INTO metrics VALUES ('loss', 9.0, 9000, 'aa', 9{', 0' if has_nan else ''})")
    writer.close()
    (column,) = first.read(batch.cursor).columns
    assert list(column.steps) == [9]


def test_a_database_that_a_page_looks_at_for_hours_stays_readable(tmp_path, monkeypatch):
    path = tmp_path / "loss_log.db"
    writer = ai_toolkit(path, wal=False)
    log(writer, range(5))
    writer.close()
    # Each look takes far more than its share of what the size explains.
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, thread_time=lambda: clock.now / 20)
    monkeypatch.setattr(budget, "time", clock)
    for _ in range(100):
        with opened(path, ("metrics",)) as database:
            clock.now += 5.0
            assert database.one("SELECT count(*) FROM metrics") == 5


def test_no_link_and_no_journal_is_in_the_copy_that_aim_opens(tmp_path, monkeypatch):
    """A stand-in for Aim, which cannot be installed everywhere, writes into every file that it is given."""
    package = tmp_path / "installed" / "aim"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import os\n"
        "class Repo:\n"
        "    def __init__(self, path):\n"
        "        files = [os.path.join(top, name) for top, _, names in os.walk(path) for name in names]\n"
        "        for name in files:\n"
        "            open(name, 'a').write('changed')\n"
        f"        open({str(tmp_path / 'given')!r}, 'w').write(' '.join(map(os.path.basename, sorted(files))))\n"
        "    def iter_runs(self):\n"
        "        return []\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "installed")
    (tmp_path / "victim").write_text("precious")
    repository = tmp_path / "log" / ".aim"
    (repository / "meta" / "chunks" / "abc").mkdir(parents=True)
    (repository / "seqs").mkdir()
    for name in ("VERSION", "run_metadata.sqlite-journal"):
        (repository / name).write_text("1")
    for name in ("run_metadata.sqlite", "meta/chunks/abc/LOG"):
        os.symlink(tmp_path / "victim", repository / name)
    os.symlink(tmp_path, repository / "seqs" / "outside")
    os.mkfifo(repository / "pipe")
    before = fingerprint(tmp_path / "log")

    only_run(tmp_path / "log").read(None)

    assert (tmp_path / "given").read_text() == "VERSION"
    assert (tmp_path / "victim").read_text() == "precious"
    assert fingerprint(tmp_path / "log") == before
