"""A real engine for the tests of this folder, started once for each worker that needs it."""

from __future__ import annotations

import pytest

from tests.fleet.engines import Embedded, NoEngine
from tests.fleet.s3_server import NoS3, S3Server
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.fleet.schema import set_up


def started(folder, *more, **front):
    """Yield a new engine; for fixtures."""
    try:
        engine = Embedded(folder, *more, **front)
    except NoEngine as error:
        pytest.skip(str(error))
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="session")
def engine(tmp_path_factory):
    """An engine with our tables."""
    for one in started(tmp_path_factory.mktemp("engine")):
        set_up(one.address())
        yield one


@pytest.fixture(scope="module")
def own_engine(tmp_path_factory):
    """An engine with our tables for one file of tests alone, to be killed or filled."""
    for one in started(tmp_path_factory.mktemp("own engine")):
        set_up(one.address())
        yield one


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
