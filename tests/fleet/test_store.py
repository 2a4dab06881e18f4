"""Every answer of the store on the engine is the one of the store on folders, byte for byte."""

from dashboard.data.clickhouse_store import ClickHouseStore
from dashboard.data.local_store import LocalStore
from tests.dashboard.data.store_answers import answers_of
from tests.dashboard.data.test_store_answers import write_rich_run
from tests.fleet.shipped_runs import id_of, log_run, ship

PATIENCE_S = 120.0


def store_on(engine, **how):
    return ClickHouseStore(engine.address(), patience_s=PATIENCE_S, **how)


def differences(found, expected):
    assert list(found) == list(expected)
    return [question for question in expected if found[question] != expected[question]]


def test_a_rich_run(engine, logs):
    folder = write_rich_run(logs)
    ship(engine, logs)
    expected = answers_of(LocalStore([logs], cache_dir=None), "r")

    found = answers_of(store_on(engine), id_of(folder))

    assert differences(found, expected) == []


def test_a_run_of_the_real_logger(engine, logs):
    folder = log_run(logs)
    ship(engine, logs)
    expected = answers_of(LocalStore([logs], cache_dir=None), folder.name)

    found = answers_of(store_on(engine), id_of(folder))

    assert differences(found, expected) == []
