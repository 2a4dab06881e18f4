"""`log`, `log_image`, `log_table`, `log_histogram` and `summary`, and reading them back with `read_run`."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading

import pytest

from tests.fork_server import run_python
from tests.made_runs import write_run
from toolkit.telemetry import TelemetryLogger, read_run
from toolkit.telemetry.testing import ManualClock, MemorySink, settle, steps_of


@pytest.fixture
def log(tmp_path):
    with TelemetryLogger("run", log_dir=tmp_path, system=False) as log:
        yield log


def events(log, kind):
    settle(log)
    return [record for record in read_run(log.run_folder).records if record["event"] == kind]


def test_log_writes_a_record_for_each_call_and_counts_the_steps(log):
    for loss in (3.0, 2.0, 1.0):
        log.log({"train_loss": loss, "acc": {"top1": loss / 10}})

    steps = events(log, "step")

    assert [(step["global_step"], step["train_loss"]) for step in steps] == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert steps[0]["acc/top1"] == 0.3


def test_log_takes_the_step_as_an_argument_or_from_the_data(log):
    log.log({"train_loss": 1.0}, step=10)
    log.log({"train_loss": 0.9, "global_step": 20})

    assert [step["global_step"] for step in events(log, "step")] == [10, 20]


def test_log_without_a_step_is_of_the_last_step_or_counted_up_where_it_alone_counts(log):
    for step in (4, 5):
        log.log_step(step, train_loss=1.0)
        log.log({"acc": 0.5})
        log.log({"f1": 0.5})
        log.log_eval(step, val_loss=1.0)
    # As W&B does it: the first row without a step belongs to the last one that has one.
    log.log({"row": 1}, step=7)
    for row in (2, 3, 4):
        log.log({"row": row})
    steps = events(log, "step")

    assert [step["global_step"] for step in steps if "acc" in step or "f1" in step] == [4, 4, 5, 5]
    assert [step["global_step"] for step in steps if "row" in step] == [7, 7, 8, 9]


def test_log_continues_counting_after_a_resume(tmp_path):
    with TelemetryLogger("run", log_dir=tmp_path, system=False) as first:
        first.log({"train_loss": 1.0}, step=41)

    with TelemetryLogger("run", log_dir=tmp_path, resume=True, system=False) as second:
        second.log({"train_loss": 0.5})

        assert [step["global_step"] for step in events(second, "step")] == [41, 42]


def test_log_keeps_images_and_tables_by_their_type(log):
    image = pytest.importorskip("PIL.Image").new("RGB", (4, 3), "red")
    frame = pytest.importorskip("pandas").DataFrame({"prompt": ["a", "b"], "score": [1.0, math.nan]})

    log.log({"train_loss": 1.0, "sample": image, "scores": frame}, step=5)

    (sample,), (table,) = events(log, "sample"), events(log, "table")
    assert (sample["name"], sample["global_step"]) == ("sample", 5)
    assert (log.run_folder / sample["path"]).read_bytes().startswith(b"\x89PNG")
    assert (table["name"], table["columns"], table["rows"]) == ("scores", ["prompt", "score"], 2)
    read = pytest.importorskip("pandas").read_csv(log.run_folder / table["path"])
    assert read["prompt"].tolist() == ["a", "b"]
    assert math.isnan(read["score"][1])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_log_image_keeps_an_array_as_it_was_when_it_was_logged(log, library):
    pil = pytest.importorskip("PIL.Image")
    if library == "numpy":
        array = pytest.importorskip("numpy").zeros((2, 3, 3), dtype="uint8")
        array[0, 0] = (255, 0, 0)
    else:
        torch = pytest.importorskip("torch")
        array = torch.zeros(3, 2, 3)
        array[0, 0, 0] = 1.0
    held = threading.Event()
    log._run.media.put("waiting", lambda: held.wait(60.0))

    log.log_image("drawn", array, step=1, caption="a red dot")
    array[:] = 0
    held.set()

    (sample,) = events(log, "sample")
    with pil.open(log.run_folder / sample["path"]) as picture:
        assert picture.size == (3, 2)
        assert picture.convert("RGB").getpixel((0, 0)) == (255, 0, 0)
    assert sample["prompt"] == sample["caption"] == "a red dot"


class Figure:
    """What matplotlib's figures have."""

    def savefig(self, buffer, format):  # noqa: A002 - its own name for it
        buffer.write(f"drawn as {format}".encode())


def test_log_image_takes_a_file_and_a_figure(log, tmp_path):
    figure = Figure()
    file = tmp_path / "picture.gif"
    file.write_bytes(b"GIF89a")

    log.log_image("figure", figure)
    log.log_image("file", file)

    paths = [sample["path"] for sample in events(log, "sample")]
    assert [os.path.splitext(path)[1] for path in paths] == [".png", ".gif"]


def test_log_table_takes_rows_mappings_and_columns(log):
    log.log_table("rows", [[1, "a"], [2, "b"]], columns=["n", "text"], step=1)
    log.log_table("mappings", [{"n": 1}, {"n": 2, "more": "x"}], step=1)
    log.log_table("columns", {"n": [1, 2], "text": ["a", "with, comma"]}, step=1)

    files = {
        table["name"]: (log.run_folder / table["path"]).read_text("utf-8") for table in events(log, "table")
    }
    assert files == {
        "rows": "n,text\n1,a\n2,b\n",
        "mappings": "n,more\n1,\n2,x\n",
        "columns": 'n,text\n1,a\n2,"with, comma"\n',
    }


def test_log_histogram_counts_what_is_not_finite_apart(log):
    log.log_histogram("weights", [0.0, 1.0, 1.0, math.nan, math.inf], bins=2, step=3)

    (record,) = events(log, "histogram")
    assert record["values"] == [1.0, 2.0]
    assert record["bins"] == [0.0, 0.5, 1.0]
    assert record["not_finite"] == 2


def test_more_media_than_can_wait_is_recorded_as_dropped(log):
    held = threading.Event()
    log._run.media.put("waiting", lambda: held.wait(60.0))

    for number in range(200):
        log.log_histogram(f"h{number}", [1.0], step=number)
    held.set()

    kept, dropped = events(log, "histogram"), events(log, "media_dropped")
    assert dropped
    assert len(kept) + len(dropped) == 200
    assert {record["name"] for record in kept + dropped} == {f"h{number}" for number in range(200)}


def test_the_summary_is_written_when_it_is_set(log):
    log.summary["best"] = 0.5
    log.summary["best"] = 0.25
    log.summary.update({"best": 0.125, "name": "x"})

    settle(log)
    assert read_run(log.run_folder).summary == {"best": 0.125, "name": "x"}
    assert dict(log.summary) == {"best": 0.125, "name": "x"}


def test_a_summary_survives_a_kill(tmp_path):
    script = (
        "import os, signal, sys; from toolkit.telemetry import TelemetryLogger\n"
        "log = TelemetryLogger('run', log_dir=sys.argv[1], system=False)\n"
        "log.summary['best'] = 0.5\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = run_python(["-c", script, tmp_path], capture_output=True)
    assert killed.returncode == -signal.SIGKILL

    with TelemetryLogger("run", log_dir=tmp_path, resume=True, system=False) as log:
        settle(log)

        assert read_run(log.run_folder).summary == {"best": 0.5}


def test_read_run_gives_back_nan_and_counts_broken_lines(tmp_path):
    with TelemetryLogger("run", log_dir=tmp_path, system=False, log_every=1) as log:
        log.log_start(config={"lr": 0.1})
        log.log_step(1, train_loss=math.nan, lr=0.1)
        log.log_step(2, train_loss=0.5, lr=0.1)
        folder = log.run_folder
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(b"{half a line\n")

    run = read_run(folder)

    frame = run.frame("step")
    assert frame["global_step"].tolist() == [1, 2]
    assert math.isnan(frame["train_loss"][0])
    assert run.config == {"lr": 0.1}
    assert (run.status.name, run.bad_lines) == ("finished", 1)
    with pytest.raises(ValueError, match="'spark'; it must be 'pandas' or 'polars'"):
        run.frame(library="spark")


def test_read_run_of_a_folder_without_a_run_says_so_and_names_those_below(tmp_path):
    with pytest.raises(FileNotFoundError, match="metrics.jsonl"):
        read_run(tmp_path)
    for name in ("a", "b"):
        TelemetryLogger(name, log_dir=tmp_path, system=False).close()
    with pytest.raises(FileNotFoundError, match="is a folder of runs, not a run; name one of them: a, b"):
        read_run(tmp_path)


def test_a_frame_without_its_library_says_what_to_install(tmp_path, monkeypatch):
    TelemetryLogger("run", log_dir=tmp_path, system=False).close()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        read_run(tmp_path / "run").frame()


def test_a_test_of_a_script_has_its_records_in_memory(tmp_path):
    sink, clock = MemorySink(), ManualClock(wall=1000.0)
    with TelemetryLogger(
        "run", log_dir=tmp_path, sinks=[sink], clock=clock, system=False, log_every=1
    ) as log:
        clock.advance(5.0)
        log.log_step(1, train_loss=0.5)
        settle(log)

        (step,) = steps_of(sink)
        assert (step["time"], step["train_loss"]) == (1005.0, 0.5)


def test_a_run_is_a_figure_of_its_metrics_also_next_to_others(tmp_path):
    pytest.importorskip("plotly")
    write_run(tmp_path, "a", sessions=(range(4), range(2, 5)), curves={"loss": [9, 8, 70, 60, 7, 6, 5]})
    write_run(tmp_path, "<b>", curves={"loss": [3.0, math.nan, 1.0], "lr": [1.0] * 3}, sessions=(range(3),))
    run = read_run(tmp_path / "a")

    [alone] = run.figure("loss").data
    assert (alone.x, alone.y) == ((0, 1, 2, 3, 4), (9, 8, 7, 6, 5)), "what the resume did again counts once"
    together = run.figure("loss", "lr", also=[tmp_path / "<b>"])
    assert [line.name for line in together.data] == ["a · loss", "&lt;b&gt; · loss", "&lt;b&gt; · lr"]
    assert math.isnan(together.data[1].y[1])
    assert run.figure("loss", also=[read_run(tmp_path / "<b>")]).layout.yaxis.title.text == "loss"
    with pytest.raises(ValueError, match=r"no run here has a metric 'los'; they have loss"):
        run.figure("los")


def test_a_figure_without_plotly_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    run = read_run(write_run(tmp_path, "a"))

    with pytest.raises(ImportError, match="figure\\(\\) needs plotly: pip install plotly"):
        run.figure("train_loss")
