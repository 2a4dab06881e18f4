"""Real engines for the tests of this folder, started once for each worker that needs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.engines import NoEngine, engine_names, set_up, start_engine
from tests.fleet.s3_server import NoS3, S3Server
from tests.lengths import is_long
from toolkit.telemetry.fleet.engine import Engine


@pytest.fixture(scope="session", params=engine_names())
def engine(request, tmp_path_factory):
    """An engine with our tables."""
    try:
        started = start_engine(request.param, tmp_path_factory.mktemp("engine") / request.param)
    except NoEngine as error:
        print(f"no ClickHouse {request.param}: {error}")
        pytest.skip(f"no ClickHouse {request.param}: {error}")
    try:
        set_up(started.address(), started.cluster)
        yield started
    finally:
        started.stop()


@pytest.fixture
def ask(engine):
    """A connection to the engine's database."""
    connection = Engine(engine.address())
    yield connection
    connection.close()


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """An S3 server with a bucket."""
    try:
        server = S3Server(tmp_path_factory.mktemp("s3") / "server")
    except NoS3 as error:
        print(f"no S3: {error}")
        pytest.skip(f"no S3: {error}")
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


_SHIPPING = (
    "test_claims.py",
    "test_drain.py",
    "test_kills.py",
    "test_live.py",
    "test_refusals.py",
    "test_shipping.py",
    "test_verify.py",
)
_DEPEND_ON_THE_ENGINE = (
    "test_a_run_of_the_logger_comes_back_byte_for_byte",
    "test_hostile_names_are_only_data",
    "test_lines_that_are_sent_again_and_cut_elsewhere_replace_themselves",
    "test_the_command_ships_shows_how_far_and_pulls",
    "test_verify_sends_dropped_parts_again",
    "test_what_a_run_has_is_known_without_reading_its_points",
)


def pytest_collection_modifyitems(items):
    """Try what the shipper decides by itself on the cluster only; `make faults` tries every engine."""
    only_there = pytest.mark.skip(reason="in make faults; on 18.16 here")
    only_new = pytest.mark.skip(reason="in make faults; on 26.9 here")
    for item in items:
        if is_long() or item.path.parent != Path(__file__).parent:
            continue
        if item.path.name == "test_store.py" and item.originalname != "test_a_rich_run":
            if item.callspec.params.get("engine") == "18.16":
                item.add_marker(only_new)
            continue
        if item.path.name not in _SHIPPING:
            continue
        named = item.callspec.params if hasattr(item, "callspec") else {}
        engine = named.get("engine", named.get("own_engine"))
        if engine not in (None, "18.16") and item.originalname not in _DEPEND_ON_THE_ENGINE:
            item.add_marker(only_there)
