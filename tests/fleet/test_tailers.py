"""The recipe for syslog-ng: into a real engine, across a SIGKILL."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter

import pytest

from tests.fleet.engines import PASSWORD, ROOT
from tests.fleet.shipped_runs import append, log_run, make_run
from tests.lengths import in_make_faults, longer
from tests.provision import NoTool, install_package, tool
from tests.waiting import wait_until
from toolkit.telemetry.fleet.engine import Engine

TAILERS = ROOT / "config" / "tailers"


class SyslogNg:
    """syslog-ng with the recipe, its own state, and none of the machine's logs."""

    def __init__(self, folder, logs, engine):
        try:
            self.command = tool("syslog-ng", "syslog-ng-core")
        except NoTool as error:
            pytest.skip(str(error))
        folder.mkdir()
        self.folder = folder
        self.process = None
        text = (TAILERS / "syslog-ng.conf").read_text()
        for name, value in (
            ("logs", str(logs)),
            ("engine", f"http://127.0.0.1:{engine.address().port}"),
            ("user", "ship"),
            ("password", PASSWORD),
        ):
            text, count = re.subn(rf'(@define {name} +)"[^"]*"', rf'\1"{value}"', text)
            assert count == 1
        # The recipe's buffer is made for a node; this one is large enough.
        text = text.replace("disk-buf-size(1073741824)", f'disk-buf-size(33554432) dir("{folder}")')
        (folder / "syslog-ng.conf").write_text(text)

    def arguments(self, *more):
        return [
            *(self.command, "-F", "--no-caps", "-f", str(self.folder / "syslog-ng.conf")),
            *("--persist-file", str(self.folder / "persist"), "--pidfile", str(self.folder / "pid")),
            *("--control", str(self.folder / "control"), *more),
        ]

    def start(self):
        self.process = subprocess.Popen(
            self.arguments("--stderr"),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "out").open("ab"),
            stderr=subprocess.STDOUT,
        )

    def stop(self, number=signal.SIGTERM):
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()


@pytest.fixture
def tailed(engine):
    """Ask for what has been tailed; the table is empty at first."""
    connection = Engine(engine.address())
    for statement in (TAILERS / "tailed.sql").read_text().split(";\n"):
        text = re.sub(r"^--.*$", "", statement, flags=re.MULTILINE).strip()
        if text:
            connection.query(text)
    yield connection
    for name in ("tailed_once", "tailed"):
        connection.query(f"DROP TABLE {name}")
    connection.close()


def syslog_ng(engine, logs, tmp_path):
    started = SyslogNg(tmp_path / "syslog-ng", logs, engine)
    check = subprocess.run(started.arguments("--syntax-only"), capture_output=True, text=True)
    if check.returncode and "http" in check.stderr:
        print(install_package("syslog-ng-mod-http"))
        check = subprocess.run(started.arguments("--syntax-only"), capture_output=True, text=True)
    assert check.returncode == 0, check.stderr
    return started


@in_make_faults
def test_syslog_ng_brings_every_line_across_kills(engine, tailed, logs, tmp_path, record_property):
    runs = [log_run(logs, "logged"), make_run(logs, "by-hand", 0)]
    append(runs[1], range(5), text="ünï \\ \"quotes\" 'and' \t \N{SNOWMAN}")
    append(runs[1], range(7), rank=1)
    append(runs[1], range(3), rank=12_345)
    tailer = syslog_ng(engine, logs, tmp_path)
    steps = 5
    try:
        for _ in range(longer(2, 4)):
            tailer.start()
            before = rows(tailed)
            for _ in range(20):
                append(runs[1], range(steps, steps + 50))
                steps += 50
            wait_until(lambda known=before: rows(tailed) > known, tailer.process)
            tailer.stop(signal.SIGKILL)
            append(runs[1], range(steps, steps + 10))
            steps += 10
        tailer.start()
        expected = Counter(
            (str(path), line)
            for folder in runs
            for path in (folder / "metrics.jsonl", *folder.glob("ranks/*.jsonl"))
            for line in path.read_text().splitlines()
        )
        wait_until(lambda: found(tailed) >= expected.keys(), tailer.process)
    finally:
        tailer.stop()
    total = rows(tailed)
    record_property("measured", f"{len(expected)} lines, {total - len(expected)} of them twice")

    assert found(tailed) == expected.keys()
    assert set(expected.values()) == {1}
    once = json.loads(tailed.query("SELECT file, record FROM tailed_once FORMAT JSONCompact"))["data"]
    assert Counter(map(tuple, once)) == expected


def rows(tailed):
    return tailed.rows("SELECT count() FROM tailed", "UInt64")[0][0]


def found(tailed):
    answer = tailed.query("SELECT DISTINCT file, line FROM tailed FORMAT JSONCompact")
    return {(file, line) for file, line in json.loads(answer)["data"]}


def test_the_recipe_of_syslog_ng_is_one_that_it_reads(tmp_path):
    found = shutil.which("syslog-ng", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        pytest.skip("syslog-ng is not here; make faults installs it")
    recipe = tmp_path / "syslog-ng.conf"
    recipe.write_bytes((TAILERS / "syslog-ng.conf").read_bytes())
    command = [found, "--syntax-only", "--no-caps", "-f", str(recipe)]

    check = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    if re.search(r"-> +http\(", check.stderr):
        pytest.skip("the http module of syslog-ng is not here; make faults installs it")
    assert check.returncode == 0, check.stderr
