"""The real libraries write in another process, and are killed, while their logs are read."""

from __future__ import annotations

import random
import time

import pytest

from tests.importers.reading import points_in
from tests.importers.samples import fingerprint
from tests.importers.writers import FLUSHED, PACKAGES, ROWS, WRITERS, Writer
from tests.lengths import in_make_faults
from tests.waiting import wait_until
from toolkit.telemetry.importers.detect import find_sources

_KILLS = 5


def tail(name, folder, chance):
    """Read a log while its tool writes it, until the tool is killed; return how many points there are."""
    with Writer(name, folder) as writer:
        writer.wait_for_more()
        wait_until(lambda: find_sources(folder).runs)
        (source,) = find_sources(folder).runs
        found, cursor, read = {}, None, 0

        def read_more():
            nonlocal cursor, read
            while True:
                batch = source.read(cursor)
                assert not batch.replaced
                points_in([batch], found)
                cursor, read = batch.cursor, read + batch.bytes_read
                if not batch.more:
                    return sum(map(len, found.values()))

        for count in (60, 150, 300):
            wait_until(lambda count=count: read_more() >= count)
            writer.wait_for_more()
        for _ in range(chance.randint(0, 20)):
            read_more()
            time.sleep(chance.random() / 50)
        writer.kill()
    before = fingerprint(folder)
    points = read_more()

    (cold,) = find_sources(folder).runs
    assert found == points_in([cold.read(None)])
    assert sorted({key[2] for key in found}) == ["loss", "lr"]
    for rows in found.values():
        assert [step for step, _, _ in rows] == list(range(len(rows)))
        if name in FLUSHED:
            assert len(rows) > writer.last
    if name not in ROWS:
        assert read <= sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert fingerprint(folder) == before
    return points


def test_a_database_is_read_while_it_is_written_and_after_its_writer_is_killed(tmp_path):
    assert tail("ai-toolkit", tmp_path / "run", random.Random(1))


@in_make_faults
@pytest.mark.parametrize("name", WRITERS)
def test_a_log_is_read_while_its_tool_writes_and_after_it_is_killed(name, tmp_path, record_property):
    pytest.importorskip(PACKAGES.get(name, name.removesuffix("_db")))
    if name == "mlflow_db":
        pytest.importorskip("mlflow")
    chance = random.Random(name)
    points = sum(tail(name, tmp_path / str(number), chance) for number in range(_KILLS))
    record_property("measured", f"{name}: {_KILLS} kills, {points:,} points, 0 lost or twice")
