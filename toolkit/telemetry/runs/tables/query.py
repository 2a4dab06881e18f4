"""One SELECT over the tables of runs, by DuckDB: it reads no files, changes nothing and ends in time."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import orjson

from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.runs.tables.run_tables import TABLES, RunTables, schema_of, unique_names

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_CONFIG: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "threads": "4",
}
_FUNCTIONS: Final = frozenset("range generate_series unnest repeat repeat_row json_each json_tree".split())
"""What a statement may select from, besides tables; other functions read files, or describe the engine."""
_OF_THE_ENGINE: Final = re.compile(r"(duckdb|pragma|pg|sqlite)_.*", re.IGNORECASE)
_NOT_IN_ARROW: Final = re.compile(r"\b(BIT|BIGNUM|VARINT|UHUGEINT|INTERVAL|TIME WITH TIME ZONE)\b")
"""Types that Arrow lacks: their values would be other ones."""
_AGAIN_S: Final = 2.0
_ROWS_AT_ONCE: Final = 100_000


class QueryError(ValueError):
    """A statement cannot be answered; the message is one sentence."""


def query(
    text: str,
    tables: RunTables,
    *,
    timeout_s: float = 60.0,
    memory_mb: int = 2_000,
    on_stuck: Callable[[str], None] = lambda _: None,
) -> pa.Table:
    """Return the answer to one SELECT over TABLES; it may take so much time and memory, reading the runs not counted.

    Only the tables and columns that it names are read, and after `where run = '…'` only that run. A call of a
    function with a huge value, such as `list_sum(range(1000000000))`, cannot be stopped, and its memory is not
    limited: meanwhile `on_stuck` is called from another thread, again and again, with a sentence that says so.

    Raises:
        QueryError: it is no SELECT, it names what does not exist, or it takes too much.
    """
    try:
        import duckdb
    except ImportError as error:
        raise QueryError(f"SQL needs {install_extra('sql')}") from error
    text = text.encode("utf-8", "backslashreplace").decode()
    connection = duckdb.connect(":memory:", config={**_CONFIG, "memory_limit": f"{memory_mb}MB"})
    is_over = threading.Event()

    too_long = f"the statement was stopped: it took longer than {timeout_s:g} s"

    def stop_in_time() -> None:
        if not is_over.wait(timeout_s):
            connection.interrupt()
        # Again: an interrupt before the statement has begun has no effect.
        while not is_over.wait(_AGAIN_S):
            connection.interrupt()
            on_stuck(too_long)

    timer = threading.Thread(target=stop_in_time, name="stopping a statement", daemon=True)
    try:
        statement = _Statement(connection, text)
        connection.execute("SET TimeZone = 'UTC'")
        # It would be printed among the answer.
        connection.execute("SET enable_progress_bar = false")
        connection.execute("SET lock_configuration = true")
        tables.list_again()
        for name in TABLES:
            connection.register(name, schema_of(name).empty_table())
        # A column may be one of another run. Of all columns, DuckDB names those that are like one that does not exist.
        for columns, runs in (statement.columns, statement.runs), (statement.columns, None), (None, None):
            for name in statement.tables:
                connection.register(name, tables.table(name, columns, runs=runs))
            if not timer.is_alive():
                timer.start()
            with contextlib.suppress(duckdb.BinderException):
                return _answer(connection, text, memory_mb)
        return _answer(connection, text, memory_mb)
    except (duckdb.Error, OSError) as error:
        # Once there are rows, Arrow passes on what DuckDB says.
        message = str(error)
        if "INTERRUPT Error" in message:
            message = too_long
        elif "Out of Memory Error" in message:
            message = f"the statement was stopped: it needs more than {memory_mb:,} MB of memory"
        else:
            # Its words for the names that there are follow the first line; the statement need not be repeated.
            message = _plain(message.split("\n\nLINE")[0])
        raise QueryError(message) from error
    finally:
        is_over.set()
        if timer.is_alive():
            timer.join()
        connection.close()


def _answer(connection: duckdb.DuckDBPyConnection, text: str, memory_mb: int) -> pa.Table:
    answer = connection.sql(text)
    table = _read(answer, memory_mb)
    odd = [
        name
        for name, kind, column in zip(table.column_names, answer.types, table.columns, strict=True)
        if _NOT_IN_ARROW.search(str(kind)) or not _fits_python(column)
    ]
    if odd:
        raise QueryError(f"{', '.join(odd)} cannot be shown as it is: ask for it as a text, with ::varchar")
    return table


def _fits_python(column: pa.ChunkedArray) -> bool:
    """Return whether Python has the dates and times in a column: not infinity, nor the year 10,000."""
    import pyarrow.compute as pc
    from pyarrow import types

    kind = column.type
    try:
        if types.is_nested(kind):
            column.to_pylist()
        elif types.is_date(kind) or types.is_timestamp(kind):
            [end.as_py() for end in pc.min_max(column).values()]
    except (OverflowError, ValueError):
        return False
    return True


def _read(answer: duckdb.DuckDBPyRelation, memory_mb: int) -> pa.Table:
    import pyarrow as pa

    reader = answer.to_arrow_reader(_ROWS_AT_ONCE)
    batches, size = [], 0
    for batch in reader:
        batches.append(batch)
        size += batch.nbytes
        if size > memory_mb * 1_000_000:
            raise QueryError(f"the statement was stopped: its answer has more than {memory_mb:,} MB")
    table = pa.Table.from_batches(batches, reader.schema)
    # Two columns of one name would be one in a row.
    return table.rename_columns(unique_names(table.column_names))


class _Statement:
    """What a statement names."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, text: str) -> None:
        [(answer,)] = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()
        parsed = orjson.loads(answer)
        if parsed["error"]:
            if parsed["error_type"] == "not implemented":
                raise QueryError("only a SELECT can be asked: runs are read, never changed")
            where = f" ({_place(text, int(parsed['position']))})" if "position" in parsed else ""
            raise QueryError(_plain(parsed["error_message"]) + where)
        if len(parsed["statements"]) != 1:
            raise QueryError(f"there are {len(parsed['statements'])} statements; ask one SELECT")
        root = parsed["statements"][0]["node"]
        nodes = [*_nodes(root)]
        texts = {one.casefold() for node in nodes for value in node.values() for one in _texts(value)}
        self.tables = [name for name in TABLES if name in texts]
        sources = [node for node in nodes if node.get("type") in ("BASE_TABLE", "TABLE_FUNCTION")]
        for name in filter(None, map(_name_of_engine, [*sources, *nodes])):
            raise QueryError(
                f"{name!r} cannot be asked: a statement reads {', '.join(TABLES)} and nothing else"
            )
        rows = {str(node.get(name, "")).casefold() for node in sources for name in ("alias", "table_name")}
        # A name of a table as a value means the whole row; a natural join, `#3` and `steps s(a)` take any column.
        takes_all = any(
            node.get("class") in ("STAR", "POSITIONAL_REFERENCE")
            or node.get("ref_type") == "NATURAL"
            or node.get("column_name_alias")
            or (node.get("class") == "COLUMN_REF" and node["column_names"][-1].casefold() in rows)
            for node in nodes
        )
        self.columns = None if takes_all else texts
        # Of a subquery, `run` may be another column.
        is_table = sources == [root.get("from_table")] and not sources[0].get("column_name_alias")
        self.runs = _runs_in(root["where_clause"]) if is_table else None


def _name_of_engine(node: dict[str, Any]) -> str | None:
    """Return the name of what a node asks that is no table of runs; None if it asks for nothing else."""
    if node.get("type") == "BASE_TABLE":
        schema, name = str(node.get("schema_name") or ""), str(node["table_name"])
        is_ours = schema.casefold() in ("", "main") and not _OF_THE_ENGINE.fullmatch(name)
        return None if is_ours else f"{schema}.{name}".lstrip(".")
    function = node["function"] if node.get("type") == "TABLE_FUNCTION" else node
    name = str(function.get("function_name", ""))
    if node.get("type") == "TABLE_FUNCTION":
        # Not `query_table`: its name of a table may be worked out.
        return None if name.casefold() in _FUNCTIONS else name
    return name if name.casefold() == "current_setting" else None


def _nodes(root: Any) -> Iterator[dict[str, Any]]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _texts(value: Any) -> Iterator[str]:
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str):
            yield one


def _runs_in(where: Any) -> set[str] | None:
    """Return the only runs for which a condition can hold; None if that may be any."""
    if not isinstance(where, dict):
        return None
    if where.get("type") == "CONJUNCTION_AND":
        return next((runs for part in where["children"] if (runs := _runs_in(part)) is not None), None)
    sides = [where.get("left") or {}, where.get("right") or {}]
    if where.get("type") == "COMPARE_EQUAL":
        for column, constant in (sides, sides[::-1]):
            literal = constant.get("literal") or {}
            if column.get("column_names", [""])[-1].casefold() == "run" and literal.get("kind") == "STRING":
                return {literal["text"]}
    return None


def _plain(message: str) -> str:
    return " ".join(re.sub(r"^[A-Z][A-Za-z ]* Error: ", "", message).split())


def _place(text: str, position: int) -> str:
    before = text.encode()[:position].decode("utf-8", "replace")
    line = before.count("\n") + 1
    return f"line {line}, column {len(before) - before.rfind(chr(10))}"
