"""However a store came to its records, it gives the same answers, byte for byte."""

import math
import shutil
from types import SimpleNamespace

import pytest

from tests.made_runs import BEGAN, step_record, write_run
from tests.runs.sources.store_answers import answers_of
from toolkit.telemetry.runfolder.layout import METRICS_JSONL, rank_file
from toolkit.telemetry.runs.columns import run_log
from toolkit.telemetry.runs.sources import rank_grid, store_queries
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.store import RunStore


def write_rich_run(root):
    """Write a run that was resumed, with NaN, completions, spans, broken lines and three ranks."""

    def loss(step):
        return {7: math.nan, 50: math.inf, 51: -math.inf}.get(step, 2.0 / (1 + step / 50))

    def span(number, **more):
        return {
            "event": "span",
            "time": BEGAN + number,
            "session": 1,
            "id": f"{number:016x}",
            "name": "save" if number % 3 else "evaluate",
            "start": BEGAN + number,
            "duration": 0.5,
            "clock": "host",
            **more,
        }

    completions = [
        {
            "event": "completion",
            "time": BEGAN + step,
            "session": 1,
            "global_step": step,
            "prompt": f"why is the {('sky', 'sea')[step % 2]} blue?",
            "completion": f"because of {step}",
            "reward": math.nan if step == 4 else step / 7,
        }
        for step in range(20)
    ]
    folder = write_run(
        root,
        "r",
        curves={
            "train_loss": loss,
            "sec_per_step": lambda step: 0.2 + step % 5 / 100,
            "lr": lambda step: 1e-4,
        },
        sessions=(range(60), range(40, 90)),
        start={"config": {"lr": 1e-4}, "host": "box"},
        extra=[
            *completions,
            *(span(number) for number in range(30)),
            {"event": "system", "time": BEGAN + 3, "session": 2, "gpu/0/util": 50, "flag": True},
            {"event": "eval", "time": BEGAN + 4, "session": 2, "global_step": 89, "val_loss": 0.5},
            {"event": "epoch", "time": BEGAN + 5, "session": 2, "global_step": 89, "epoch": 1, "loss": 0.25},
            {"event": "lost", "time": BEGAN + 6, "session": 2, "records": 3, "reason": "disk full"},
            step_record(90, session=2, train_loss=0.1),
        ],
        ranks={
            1: {"sec_per_step": lambda step: 0.21, "train_loss": loss},
            5: {"sec_per_step": lambda step: 0.4 + step % 3 / 50},
        },
    )
    with (folder / METRICS_JSONL).open("ab") as file:
        file.write(
            b'rubbish\n\n{"event":"step","global_step":91,"train_loss":NaN}\n{"event":7}\n{"event":"st'
        )
    return folder


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    root = tmp_path_factory.mktemp("rich")
    write_rich_run(root)
    return root


@pytest.fixture(scope="module")
def expected(rich):
    return answers_of(LocalStore([rich], cache_dir=None), "r")


def assert_same(found, expected):
    assert list(found) == list(expected)
    assert [question for question in expected if found[question] != expected[question]] == []


def test_a_store_that_read_the_run_as_it_grew(rich, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(rank_grid, "_LOOK_EVERY_S", -1e9)
    shutil.copytree(rich / "r", tmp_path / "r")
    files = [tmp_path / "r" / METRICS_JSONL, *(rank_file(tmp_path / "r", rank) for rank in (1, 5))]
    whole = {path: path.read_bytes() for path in files}
    store: RunStore = LocalStore([tmp_path], cache_dir=None)
    for part in (0.0, 0.2, 0.21, 0.7, 1.0):
        for path, data in whole.items():
            path.write_bytes(data[: int(len(data) * part)])
        found = answers_of(store, "r")

    assert_same(found, expected)


def test_a_store_that_kept_its_columns(rich, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(run_log, "MIN_CACHED_BYTES", 1)
    first = LocalStore([rich], cache_dir=tmp_path / "cache")
    assert_same(answers_of(first, "r"), expected)
    first.wait_until_saved(60.0)
    second = LocalStore([rich], cache_dir=tmp_path / "cache")

    assert second.refresh("r", wait_s=60.0).from_cache
    assert_same(answers_of(second, "r"), expected)


def test_a_difference_is_found(expected, tmp_path):
    folder = write_rich_run(tmp_path)
    data = (folder / METRICS_JSONL).read_bytes()
    at = data.index(b'"train_loss":', len(data) // 2)
    changed = data[:at] + data[at:].replace(b"5", b"6", 1)
    (folder / METRICS_JSONL).write_bytes(changed)

    found = answers_of(LocalStore([tmp_path], cache_dir=None), "r")

    assert {"records of rank 0", "train_loss by step", "table"} <= {
        question for question in expected if found[question] != expected[question]
    }


def test_columns_of_runs_not_used_lately_are_given_up_beyond_the_budget_however_many_there_are(monkeypatch):
    monkeypatch.setattr(store_queries, "_MEMORY_BUDGET", 10)
    now = store_queries.time.monotonic()
    logs = {(f"run {n}", 0): SimpleNamespace(used_at=now - 1000 + n, nbytes=1) for n in range(40)}
    for log in [*logs.values()][-5:]:
        log.used_at = now

    store_queries.evict(logs, logs["run 0", 0])

    assert [key for key, _ in logs] == ["run 0", *(f"run {n}" for n in range(31, 40))]
