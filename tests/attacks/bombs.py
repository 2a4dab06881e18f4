"""Small files of other tools that would take gigabytes or never end, and a process that lists each of them.

`python -m tests.attacks.bombs ROOT OUT` lists every folder in ROOT as the command and as the dashboard do, and leaves
in OUT what each took.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import sqlite3
import struct
import sys
import tempfile
import time
import zipfile
import zlib
from pathlib import Path

GOOD = "step,loss\n0,3.0\n1,2.0\n2,1.0\n"
LEVELS = 50
MLFLOW = (
    "CREATE TABLE experiments (experiment_id INTEGER, name TEXT, lifecycle_stage TEXT);"
    "CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, experiment_id INTEGER, lifecycle_stage TEXT,"
    "    end_time INTEGER);"
    "CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, step INTEGER, is_nan INTEGER);"
    "CREATE TABLE params (run_uuid TEXT, key TEXT, value TEXT);"
    "INSERT INTO experiments VALUES (0, 'e', 'active');"
    "INSERT INTO runs VALUES ('aa', 'one', 'FINISHED', 0, 'active', 1);"
    "INSERT INTO metrics VALUES ('loss', 1.0, 0, 'aa', 1, 0);"
)
SWANLAB = b":SWL" + struct.pack("<HB", 0xE1D6, 2)
WANDB = b":W&B" + struct.pack("<HB", 0xBEE1, 0)

BOMBS = {}


def bomb(make):
    BOMBS[make.__name__] = make
    return make


def file(path, content):
    """Return a bomb that is one file; `content` is called when it is made."""

    def make(folder):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content())

    return make


# ---------------------------------------------------------------- YAML


def params(content):
    """Return a bomb in the settings of a run of DVCLive."""

    def make(folder):
        file("plots/metrics/loss.tsv", lambda: "step\tloss\n0\t1.0\n")(folder)
        file("params.yaml", content)(folder)

    return make


def meta(content):
    """Return a bomb in what MLflow says about a run."""

    def make(folder):
        file("metrics/loss", lambda: "1700000000000 1.0 0\n")(folder)
        file("meta.yaml", lambda: f"run_id: abc\nexperiment_id: 0\nname: x\n{content()}")(folder)

    return make


def levels(first, count, line):
    """Return aliases of aliases: each level has several of the one before it."""
    return f"a0: &a0 {first}\n" + "".join(f"a{at}: &a{at} {line(f'*a{at - 1}')}\n" for at in range(1, count))


BOMBS |= {
    "yaml_brackets": params(lambda: "[" * 50_000),
    "yaml_brackets_of_mlflow": file("meta.yaml", lambda: "[" * 50_000),
    "yaml_braces": meta(lambda: "tags: " + "{a: " * 50_000),
    "yaml_aliases": params(
        lambda: levels(f"[{', '.join('x' * 9)}]", LEVELS, lambda one: f"[{', '.join([one] * 9)}]")
    ),
    "yaml_aliases_of_mappings": params(
        lambda: levels(
            "{x: 1}", LEVELS, lambda one: f"{{{', '.join(f'k{number}: {one}' for number in range(9))}}}"
        )
    ),
    "yaml_aliases_of_a_long_text": params(
        lambda: f"a: &a {'x' * 400_000}\nb: [{', '.join(['*a'] * 40_000)}]"
    ),
    "yaml_alias_of_itself": params(lambda: "a: &a {b: &b [*a, *b]}"),
    "yaml_merge_keys": meta(lambda: levels("{k: 1}", 20, lambda one: f"\n  <<: [{', '.join([one] * 4)}]")),
    "yaml_base_60": params(lambda: "a: 1" + ":59" * 266_000),
    "yaml_digits": params(lambda: f"a: {'9' * 900_000}\n"),
    "yaml_keys_of_one_hash": params(lambda: "".join(f"{at * (2**61 - 1)}: 1\n" for at in range(1, 40_000))),
    "yaml_directives": params(
        lambda: "#\n" + "".join(f"%TAG !a{at}! x\n" for at in range(60_000)) + "--- {}\n"
    ),
}


def swanlog(folder, points):
    """Write a run of SwanLab that has points in a file of this name."""
    run = folder / "swanlog" / "run-20260101_000000-abc"
    (run / "files").mkdir(parents=True)
    file(f"logs/loss/{points[0]}", lambda: points[1])(run)
    return run


@bomb
def yaml_dashes(folder):
    run = swanlog(folder, ("10.log", '{"index": 1, "data": 1.0}\n'))
    (run / "files" / "config.yaml").write_text("- " * 50_000)


@bomb
def yaml_next_to_an_event_file(folder):
    (folder / "events.out.tfevents.1700000000.host").write_bytes(b"".join(record(event(b"loss"))))
    (folder / "hparams.yaml").write_text("[" * 50_000)


# ---------------------------------------------------------------- tables and JSON


def million_columns(comma):
    names = comma.join(f"a{at}" for at in range(700_000))
    cells = comma.join(["1"] * 700_000)
    return f"step{comma}{names}\n{cells}\n{cells}\n"


BOMBS |= {
    "table_of_a_million_columns": file("metrics.csv", lambda: million_columns(",")),
    "table_with_an_open_quote": file("metrics.csv", lambda: 'step,loss\n1,"' + "\n" * 1_000_000),
    "table_of_dvclive_with_a_million_columns": file("plots/metrics/loss.tsv", lambda: million_columns("\t")),
    "text_of_one_letter": file("train.log", lambda: ("step 1 " + "a" * 3_900 + "\n") * 250),
    "json_of_empty_lists": file(
        "log.jsonl", lambda: '{"step": 1}\n{"step": 2, "x": [' + "[]," * 4_000_000 + "[]]}\n"
    ),
    "json_of_many_names": file(
        "log.jsonl",
        lambda: '{"step": 1}\n{"step": 2, ' + ",".join(f'"{at:x}":1' for at in range(1_000_000)) + "}\n",
    ),
    "json_brackets": file(
        "log.jsonl",
        lambda: '{"step": 1, "loss": 1}\n{"step": 2, "x": ' + "[" * 500_000 + "]" * 500_000 + "}\n",
    ),
    "json_of_a_trainer_state": file(
        "trainer_state.json", lambda: '{"log_history": [' + "{}," * 4_000_000 + "{}]}"
    ),
}


@bomb
def json_of_the_same_state_in_many_checkpoints(folder):
    rows = ",\n".join(f'  {{"step": {at}, "loss": 0.123456789, "grad_norm": 1.5}}' for at in range(40_000))
    (folder / "trainer_state.json").write_text(f'{{"log_history": [\n{rows}]}}')
    for at in range(60):
        (folder / f"checkpoint-{at}").mkdir()
        os.link(folder / "trainer_state.json", folder / f"checkpoint-{at}" / "trainer_state.json")


@bomb
def json_of_a_queue_of_neptune(folder):
    path = ",".join(['"' + "n" * 20 + '"'] * 300_000)
    line = f'{{"obj": {{"type": "LogFloats", "path": [{path}], "values": [{"{}," * 1_000_000}{{}}]}}}}\n'
    (folder / "data-1.log").write_text(line)


@bomb
def json_of_an_inbox(folder):
    (folder / "inbox" / "w").mkdir(parents=True)
    start = '{"kind": "metric", "project": "p", "run": "r", "step": 1, '
    config = ",".join(f'"{at:x}":{{}}' for at in range(1_000_000))
    (folder / "inbox" / "w" / "1.jsonl").write_text(
        start + '"metrics": {"loss": 1}}\n' + start + f'"config": {{{config}}}, "metrics": {{}}}}\n'
    )


@bomb
def params_of_mlflow_that_are_one_file(folder):
    meta(str)(folder)
    (folder / "params").mkdir()
    (folder / "params" / "a").write_text("x" * 64_000)
    for at in range(3_000):
        os.link(folder / "params" / "a", folder / "params" / f"p{at}")


# ---------------------------------------------------------------- zip


@bomb
def zip_of_many_entries(folder):
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    directory = entry * 1_000_000
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(directory), 4, 0)
    (folder / "x.zip").write_bytes(b"PK\3\4" + directory + end)


def comet(folder, messages, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(folder / "x.zip", "w", method) as archive:
        archive.writestr("experiment.json", '{"offline_id": "x"}')
        archive.writestr("messages.json", messages)


@bomb
def zip_of_newlines(folder):
    # As much noise as makes the rest look like an ordinary text.
    comet(folder, os.urandom(330_000) + b"\n" * 64_000_000)


@bomb
def zip_of_zeros(folder):
    comet(folder, bytes(100_000_000))


@bomb
def zip_with_a_dictionary_of_4_gb(folder):
    comet(folder, b"{}\n" * 1000, zipfile.ZIP_LZMA)
    content = (folder / "x.zip").read_bytes()
    (folder / "x.zip").write_bytes(content.replace(b"\x5d\0\0\x80\0", b"\x5d\xff\xff\xff\xff"))


# ---------------------------------------------------------------- Parquet


def parquet(folder, columns, **how):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), folder / "project.parquet", **how)
    (folder / "project_configs.parquet").write_bytes((folder / "project.parquet").read_bytes())


def repeated(value, count):
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([value]))


@bomb
def parquet_dictionary(folder):
    columns = {"run_name": repeated("x" * 4_000_000, 65_536), "step": [1] * 65_536}
    parquet(folder, columns, compression="zstd")


@bomb
def parquet_dictionary_of_a_metric(folder):
    columns = {"run_name": ["r"] * 65_536, "step": [1] * 65_536, "loss": repeated("x" * 4_000_000, 65_536)}
    parquet(folder, columns, compression="zstd")


@bomb
def parquet_of_equal_rows(folder):
    columns = {"run_name": repeated("r", 4_000_000), "step": repeated(1, 4_000_000)}
    parquet(folder, columns, compression="zstd")


@bomb
def parquet_of_zeros(folder):
    import pyarrow as pa

    zeros = pa.array([bytes(50_000_000)])
    columns = {"run_name": ["r"], "step": [1], **{f"x{at}": zeros for at in range(6)}}
    parquet(folder, columns, compression="zstd", use_dictionary=False)


@bomb
def parquet_of_many_columns(folder):
    parquet(folder, {"run_name": ["r"], "step": [1], **{f"a{at}": [1.0] for at in range(10_000)}})


# ---------------------------------------------------------------- SQLite


def database(folder, script, name="mlflow.db"):
    writer = sqlite3.connect(folder / name, isolation_level=None)
    writer.executescript(script)
    roots = dict(writer.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'"))
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.close()
    return folder / name, roots, pages


def leaf(cells):
    """Return a page of a table with these cells."""
    page, starts = bytearray(4096), []
    at = 4096
    for cell in cells:
        at -= len(cell)
        page[at : at + len(cell)] = cell
        starts.append(at)
    page[:8] = struct.pack(">BHHHB", 13, 0, len(cells), at, 0)
    page[8 : 8 + 2 * len(starts)] = struct.pack(f">{len(starts)}H", *starts)
    return bytes(page)


def varint(number):
    found = [number & 0x7F]
    while number := number >> 7:
        found.append(number & 0x7F | 0x80)
    return bytes(reversed(found))


def same_below(page):
    """Return a page of a tree that has 400 times the same page below it."""
    found = bytearray(leaf([struct.pack(">I", page) + varint(at) for at in range(400)]))
    found[12:812] = found[8:808]
    found[0], found[8:12] = 5, struct.pack(">I", page)
    return bytes(found)


def rewritten(path, pages, more):
    """Put pages in place of others, and others at the end."""
    content = bytearray(path.read_bytes())
    for number, page in pages.items():
        content[(number - 1) * 4096 : number * 4096] = page
    content += b"".join(more)
    content[28:32] = struct.pack(">I", len(content) // 4096)
    path.write_bytes(content)


@bomb
def sqlite_tree_that_repeats_itself(folder):
    path, roots, pages = database(folder, MLFLOW)
    rows = path.read_bytes()[(roots["metrics"] - 1) * 4096 : roots["metrics"] * 4096]
    # Five levels: 10 billion rows.
    levels = [same_below(pages + 1 + level) for level in range(5)]
    rewritten(path, {roots["metrics"]: levels[0]}, [*levels[1:], rows])


@bomb
def sqlite_texts_that_are_one_text(folder):
    path, roots, pages = database(folder, MLFLOW)
    # 2,800 rows of 12 MB in the same chain of pages; 489 bytes of each are next to its number.
    size = 489 + 3_000 * 4092
    text = varint(2 * (size - 10) + 13)
    header = bytes([len(text) + 3, 17, 15]) + text
    cells = [
        varint(size) + varint(at) + (header + b"aak").ljust(489, b"x") + struct.pack(">I", pages + 2)
        for at in range(1, 8)
    ]
    chain = [struct.pack(">I", pages + 3 + at if at < 2_999 else 0).ljust(4096, b"x") for at in range(3_000)]
    rewritten(path, {roots["params"]: same_below(pages + 1)}, [leaf(cells), *chain])


@bomb
def sqlite_columns_that_are_computed(folder):
    doubled = ", ".join(f"c{at} TEXT AS (c{at - 1} || c{at - 1})" for at in range(1, 24))
    script = MLFLOW.replace(
        "value TEXT, run_uuid TEXT);", f"c0 TEXT, {doubled}, value TEXT AS (c23), run_uuid TEXT);"
    )
    rows = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 100) "
    database(folder, script + rows + "INSERT INTO params SELECT 'aa', 'k' || i, 'x' FROM n;")


@bomb
def sqlite_of_many_tables(folder):
    tables = "".join(f"CREATE TABLE t{at} (a);" for at in range(3_000))
    database(folder, f"BEGIN; {MLFLOW}{tables} COMMIT;")


@bomb
def sqlite_of_many_runs(folder):
    rows = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 40000) "
    script = "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT);"
    database(
        folder,
        script + rows + "INSERT INTO metrics SELECT i, '', 'r' || (i % 50), i, '{}' FROM n;",
        "trackio.db",
    )


# ---------------------------------------------------------------- event files and logs of frames


def field(number, content):
    return _protobuf(number << 3 | 2) + _protobuf(len(content)) + content


def _protobuf(number):
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def event(tag, value=b"\x15\0\0\x80\x3f"):
    return b"\x09" + struct.pack("<d", 1.7e9) + b"\x10\x01" + field(5, field(1, field(1, tag) + value))


def record(data):
    """Yield the parts of a record of an event file, without the checksum of its data."""
    from toolkit.telemetry.importers.framing.tfrecord import checksum_of_length

    yield struct.pack("<QI", len(data), checksum_of_length(len(data)))
    yield data
    yield bytes(4)


def events(folder, records):
    start = b"".join(record(event(b"loss")))
    (folder / "events.out.tfevents.1700000000.host").write_bytes(start + records)


@bomb
def events_that_are_empty(folder):
    events(folder, b"".join(record(b"")) * 200_000)


@bomb
def events_of_many_tags(folder):
    events(folder, b"".join(b"".join(record(event(b"%d" % at))) for at in range(60_000)))


@bomb
def events_with_many_texts_in_one(folder):
    text = field(8, b"\x08\x07" + field(8, b"") * 4_000_000)
    plugin = field(9, field(1, field(1, b"text")))
    events(folder, b"".join(record(event(b"t", text + plugin))))


def frames(records, magic):
    """Return a log of LevelDB's format."""
    out = bytearray(magic)
    for content in records:
        at = 0
        while at < len(content):
            left = 32768 - len(out) % 32768
            if left < 7:
                out += bytes(left)
                continue
            part = content[at : at + left - 7]
            is_last = at + len(part) == len(content)
            chunk = (4 if is_last else 3) if at else (1 if is_last else 2)
            out += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([chunk]))), len(part), chunk) + part
            at += len(part)
    return bytes(out)


def history(items):
    return field(2, b"".join(field(1, field(1, key) + field(16, value)) for key, value in items))


def log_of_frames(name, magic, content):
    """Return a bomb in one record of a log of W&B or SwanLab."""

    def make(folder):
        (folder / name).write_bytes(frames([content()], magic))

    return make


def names_and_ones():
    return ("{" + ",".join(f'"{at:x}":1' for at in range(100_000)) + "}").encode()


BOMBS |= {
    "wandb_of_many_images_in_a_row": log_of_frames(
        "run-x.wandb", WANDB, lambda: history([(b"%d._type" % at, b'"image-file"') for at in range(30_000)])
    ),
    "wandb_of_many_values_in_a_row": log_of_frames(
        "run-x.wandb", WANDB, lambda: field(2, field(1, field(1, b"") + field(16, b"")) * 1_200_000)
    ),
    "wandb_of_a_long_name_of_many_values": log_of_frames(
        "run-x.wandb", WANDB, lambda: history([(b"k" * 500_000, names_and_ones())])
    ),
    "wandb_settings_of_empty_lists": log_of_frames(
        "run-x.wandb",
        WANDB,
        lambda: field(17, field(4, field(1, field(1, b"k") + field(16, b"[" + b"[]," * 4_000_000 + b"[]]")))),
    ),
    "swanlab_of_many_fields": log_of_frames(
        "run-x.swanlab", SWANLAB, lambda: field(13, field(7, b"") * 1_000_000)
    ),
}


@bomb
def swanlab_json_of_empty_lists(folder):
    swanlog(folder, ("10.json", '{"data": [' + "{}," * 4_000_000 + "{}]}"))


# ---------------------------------------------------------------- the process that looks at them


class Cost:
    """Seconds of the processor and megabytes that something took, in this process and its children."""

    def __enter__(self):
        # Linux forgets the peak so far: then each has its own.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._before = _megabytes("VmRSS")
        self._began = self._seconds()
        return self

    def __exit__(self, *_):
        self.seconds = self._seconds() - self._began
        in_children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        self.megabytes = max(_megabytes("VmHWM") - self._before, in_children)

    @staticmethod
    def _seconds():
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system


def _megabytes(name):
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def listed_by_the_command(folder):
    from toolkit.telemetry.cli.run_list import list_runs

    # Text logs are read only where one is named.
    return [run.card.name for run in list_runs([folder, *folder.rglob("*.log")]).runs]


def listed_by_the_dashboard(folder):
    from toolkit.telemetry.runs.listing.foreign_runs import ForeignRuns

    page = ForeignRuns([folder], None)
    end = time.monotonic() + 600
    while time.monotonic() < end:
        runs, _ = page.all()
        # All cards as well: they are what the page shows.
        names = [run.card(time.time()).name for run in runs]
        if page._is_listed and not page._thread.is_alive():
            return names
        time.sleep(0.005)
    return []


def main(root, out):
    result = {}
    # What is imported counts for no bomb.
    with tempfile.TemporaryDirectory() as empty:
        for look in (listed_by_the_command, listed_by_the_dashboard):
            look(Path(empty))
    for folder in sorted(root.iterdir()):
        for look in (listed_by_the_command, listed_by_the_dashboard):
            with Cost() as cost:
                names = look(folder)
            result[f"{folder.name} {look.__name__}"] = ["good" in names, cost.seconds, cost.megabytes]
            out.write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
