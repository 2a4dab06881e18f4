"""Real engines for the tests of this folder, started once for each worker that needs them."""

from __future__ import annotations

import pytest

from tests.fleet.engines import NoEngine, engine_names, start_engine
from tests.fleet.s3_server import NoS3, S3Server
from toolkit.fleet.engine import Engine
from toolkit.fleet.schema import set_up


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
