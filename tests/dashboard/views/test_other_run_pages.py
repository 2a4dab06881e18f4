"""System and configuration of a run."""

from __future__ import annotations

import json
import time

import pytest

from tests.dashboard.views.pages import open_page, open_settings
from tests.made_runs import step_record, write_run

# ---------------------------------------------------------------- system


def gpu_samples(gpus=2, **changed):
    values = {"util": 97.0, "mem_used_gb": 79.5, "mem_total_gb": 80.0, "temp_c": 60.0, "power_w": 300.0}
    return [
        {
            "event": "system",
            "time": time.time() - 10 + second,
            "global_step": second,
            "cpu_percent": 50.0,
            **{
                f"gpu/{gpu}/{name}": value
                for gpu in range(gpus)
                for name, value in {**values, **changed}.items()
            },
        }
        for second in range(5)
    ]


def test_more_than_four_gpus_share_a_table_and_a_heat_map(logs):
    accelerators = [{"index": number, "name": "H200 <b>"} for number in range(8)]
    samples = gpu_samples(8, mem_used_gb=60.0, power_limit_w=700.0)
    for sample in samples:
        sample |= {"gpu/3/util": 4.0, "gpu/5/mem_used_gb": 79.5, "gpu/6/mem_used_gb": 77.0}
    environment = {"event": "environment", "time": 1.7e9, "accelerators": accelerators}
    write_run(logs, "r", status="running", extra=[environment, *samples])

    tab = open_page("machine", "r")
    words = tab.said()
    table = next(table for table in tab.tables() if "GPU" in table)
    (heat,) = tab.figures()["utilization of 8 GPUs over time"]["data"]
    figures = {data["title"]: data for data in tab.curve_charts()}

    assert "**GPU 0**" not in words
    assert "Machine :gray[8 H200 <b>]" in words
    assert "Memory full]: GPU 5\n" in words
    assert "Memory nearly full]: GPU 6\n" in words
    assert list(table["GPU"]) == list("01234567")
    assert list(table["Utilization"]) == [0.04 if gpu == 3 else 0.97 for gpu in range(8)]
    assert list(table["Memory of 80 GB"] * 80) == pytest.approx([60, 60, 60, 60, 60, 79.5, 77, 60])
    assert set(table["Temperature"]) == {"60 °C"}
    assert set(table["Power of 700 W"]) == {300 / 700}
    assert heat["type"] == "heatmap"
    assert heat["y"] == list("01234567")
    assert "GPU utilization" not in figures, "the heat map shows it"
    for title in ("GPU memory", "Temperature", "Power"):
        # A legend of eight curves would leave the plot no height.
        assert "legend" not in figures[title]
        assert [line["label"] for line in figures[title]["curves"]] == [
            f"GPU {number}" for number in range(8)
        ]
    from_zero = {title for title, figure in figures.items() if figure.get("from_zero")}
    assert not from_zero & {"GPU memory", "Temperature", "Power"}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.5, "Slowest: rank 1 (0.5 s)"), (0.1, "No rank is clearly slower than the others")],
)
def test_the_ranks_of_a_run_are_compared(logs, seconds, words):
    usual = {"sec_per_step": lambda step: 0.1}
    ranks = {1: {"sec_per_step": lambda step: seconds}, 2: usual}
    write_run(logs, "r", curves={"train_loss": float, **usual}, ranks=ranks)

    tab = open_page("machine", "r")

    assert "3 ranks" in tab.said()
    assert words in tab.said()
    # Those that wait for each other have equal step times, which say nothing.
    assert ("A slow rank can only be named if" in tab.said()) == (seconds == 0.1)


def test_the_slow_one_of_a_thousand_ranks_is_named(logs):
    def rank(slow):
        return {"sec_per_step": lambda step: slow * (1.0 + step % 7 / 100)}

    write_run(
        logs,
        "r",
        curves=rank(0.2),
        sessions=(range(20),),
        ranks={number: rank(0.31 if number == 617 else 0.2) for number in range(1, 1024)},
    )

    tab = open_page("machine", "r")

    assert "1,024 ranks" in tab.said()
    assert "**Rank 617 is the slowest**" in tab.said()
    assert "1.55 times as long as the median rank" in tab.said()
    assert "A row shows 4 ranks" in tab.said()


def test_of_ranks_that_wait_for_each_other_the_part_in_which_they_differ_is_shown(logs):
    def rank(data, backward):
        return {
            "sec_per_step": lambda _: 0.5,
            "time/data_loading": lambda _: data,
            "time/backward": lambda _: backward,
        }

    write_run(
        logs,
        "r",
        curves={"train_loss": float, **rank(0.01, 0.4)},
        ranks={1: rank(0.31, 0.1), 2: rank(0.01, 0.4)},
    )

    tab = open_page("machine", "r")

    assert "Slowest: rank 1 (0.31 s)" in tab.said()
    assert "the rank with the shortest backward pass holds up the others" in tab.said()


# ---------------------------------------------------------------- configuration


def test_the_code_of_each_session_is_shown(logs):
    folder = write_run(logs, "r", start={"config": {}, "packages": {"torch": "2.6", "other": "1"}})
    assert "Code" not in [tab.label for tab in open_page("config_notes", "r").tabs]
    code = folder / "code"
    for session in (1, 2):
        (code / str(session)).mkdir(parents=True)
        (code / str(session) / "train.py").write_text(f"lr = {session}\n")
        known = {"kind": "git", "commit": "abc123", "branch": "<b>", "dirty": True, "script": "train.py"}
        files = {"train.py": f"{session}/train.py"}
        (code / f"{session}.json").write_text(
            json.dumps({**known, "files": files, "left_out": {"a.bin": "large"}})
        )
    (code / "2.diff").write_text("-lr = 0\n+lr = 2\n")

    tab = open_page("config_notes", "r")

    assert "Code" in [found.label for found in tab.tabs]
    shown = [block.value for block in tab.code]
    assert "lr = 2" in shown
    assert any("-lr = 1\n+lr = 2" in text for text in shown)
    assert "-lr = 0\n+lr = 2" in shown
    assert "abc123" in tab.said()
    (code / "2.json").write_text("{")
    assert "Not all of it could be read" in open_page("config_notes", "r").said()


def test_the_configuration_can_be_searched_and_copied(logs):
    write_run(
        logs, "r", start={"config": {"optimizer": {"lr": 0.001, "name": "adam"}, "seed": 7}, "host": "box"}
    )
    tab = open_page("config_notes", "r")

    assert any("lr: 0.001" in code.value for code in tab.code)

    tab.text_input(key="_config_search").set_value("adam").run()

    table = next(table for table in tab.tables() if list(table.columns) == ["key", "value"])
    assert list(table["value"]) == ["adam"]
    assert "1 of 3 values" in tab.said()


def test_a_run_without_a_start_record_says_so(logs):
    write_run(logs, "r", [step_record(1, train_loss=1.0)])

    tab = open_page("config_notes", "r")

    assert "has not logged a start record" in tab.said()


def test_settings_show_what_the_dashboard_looks_at_and_empty_its_cache(logs):
    write_run(logs, "r")
    tab = open_settings()

    assert str(logs) in [code.value for code in tab.code]
    assert "No data leaves this machine" in tab.said()

    tab.press_in_settings("Clear the cache")

    assert any("Freed" in toast.value for toast in tab.toast)


def test_a_change_that_was_asked_for_is_marked_on_the_system_charts_too(logs):
    change = {"event": "control_change", "status": "applied", "setting": "log_every", "old": 5, "new": 50}
    write_run(logs, "r", extra=[*gpu_samples(gpus=1), {**change, "time": time.time(), "global_step": 3}])

    found = open_page("machine", "r").curve_charts()

    assert found
    assert all([mark["text"] for mark in chart["marks"]] == ["log_every → 50"] for chart in found)
