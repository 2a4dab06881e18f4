from __future__ import annotations

import math
import shutil
import subprocess
import sys

from tests.project.markdown import ROOT
from tests.reports.report_parts import Page
from toolkit.telemetry import TelemetryLogger, read_run

HOSTILE = "</style></svg><script>alert(1)</script><img src=https://evil.example/x onerror=alert(1)>\x1b[31m"


def hostile_run(folder):
    config = {"train": {"steps": 1200}, HOSTILE: HOSTILE}
    with TelemetryLogger(
        "bad", log_dir=folder, log_every=1, system=False, config=config, project=HOSTILE
    ) as log:
        for step in range(1, 1201):
            loss = 5.0 if step == 601 else math.nan if 800 <= step < 820 else 0.1 + 1 / step
            log.log_step(step, **{"train_loss": loss, HOSTILE: float(step)})
    return log


def check_the_hostile_run(shown):
    page = Page(shown["text/html"])

    assert set(shown) == {"text/html", "text/plain"}
    assert {"script", "img"}.isdisjoint(name for name, _ in page.elements)
    assert page.references() == []
    assert [name for name, _ in page.elements].count("style") == 1
    assert "<script>alert(1)</script>" in page.text, "it is shown as text"
    assert "step 1,200 of 1,200" in page.text
    assert "train_loss is NaN or infinite from step 800" in page.text
    assert [one["class"] for one in page.all("rect")].count("nan") == 1
    assert "highest 5" in page.all("svg")[0]["aria-label"], "the spike is drawn, though points are left out"
    assert "points for 1,200 records, with all extremes" in page.text
    assert "CRITICAL Not a number: train_loss" in shown["text/plain"]
    assert "\x1b" not in shown["text/plain"]
    assert len(shown["text/html"]) < 100_000


def test_a_logger_and_a_run_show_themselves_and_hostile_text_stays_text(tmp_path):
    log = hostile_run(tmp_path)

    check_the_hostile_run(log._repr_mimebundle_(include=None, exclude=None))
    data = read_run(log.run_folder)
    check_the_hostile_run(data._repr_mimebundle_(include=None, exclude=None))
    shutil.rmtree(log.run_folder)
    assert data._repr_mimebundle_() == {"text/plain": repr(data)}
    assert log._repr_mimebundle_() == {"text/plain": repr(log)}
    with TelemetryLogger("off", log_dir=tmp_path, enabled=False) as off:
        assert off._repr_mimebundle_() == {"text/plain": repr(off)}


def test_the_bare_install_shows_the_same(tmp_path):
    log = hostile_run(tmp_path)
    code = f"""
import sys
for name in ("numpy", "pandas", "pyarrow", "PIL", "IPython"):
    sys.modules[name] = None
from tests.cli.test_notebook import check_the_hostile_run
from toolkit.telemetry import read_run
check_the_hostile_run(read_run({str(log.run_folder)!r})._repr_mimebundle_())
"""
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)

    assert finished.returncode == 0, finished.stderr


CELLS = [
    """
import os, signal, threading, time
from IPython.core.error import UsageError
from IPython.display import DisplayHandle
import toolkit.cli.notebook as notebook
from toolkit.telemetry import TelemetryLogger

%load_ext toolkit.telemetry.notebook
notebook._EVERY_S, notebook._PAUSES, notebook._APPEARS_S = 0.05, 0, 100.0
updates, update = [], DisplayHandle.update

def recorded(self, shown, **named):
    update(self, shown, **named)
    updates.append(shown["text/plain"])

DisplayHandle.update = recorded

def train(name, also=lambda: None):
    with TelemetryLogger(name, log_dir="logs", log_every=1, system=False, quiet=True) as log:
        step = 0
        while not any(text.startswith(f"{name}: running") for text in updates):  # it is shown while it trains
            step += 1
            log.log_step(step, train_loss=1 / step)
            time.sleep(0.01)
        also()
    return name
""",
    "%%telemetry\ntrain('in-the-cell')",
    """
thread = threading.Thread(target=train, args=("thread",)); thread.start()
%telemetry thread
""",
    """
thread.join()
stop = threading.Event()
press = lambda: (os.kill(os.getpid(), signal.SIGINT), stop.wait())
thread = threading.Thread(target=train, args=("interrupted", press)); thread.start()
%telemetry logs/interrupted
""",
    "stop.set(); thread.join()\n%telemetry compare thread logs/in-the-cell",
    "%%telemetry\ntrain('failed', lambda: 1 / 0)",
    """
notebook._APPEARS_S = 0.0
for line in ("none", "a b", "compare thread", "--cell x", '"', "-v"):
    try:
        get_ipython().run_line_magic("telemetry", line)
    except UsageError as error:
        print(error)
""",
]


def test_a_kernel_shows_runs_live_in_place_compares_them_and_refuses_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("TELEMETRY_LOG_DIR", raising=False)
    import nbformat
    from nbclient import NotebookClient

    class Client(NotebookClient):
        def process_message(self, msg, cell, cell_index):
            if msg["msg_type"] in ("display_data", "update_display_data"):
                seen.append((cell_index, msg["content"]["data"]["text/plain"]))
            return super().process_message(msg, cell, cell_index)

    seen = []
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    client = Client(book, timeout=200, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    _, in_cell, thread, interrupted, compared, failed, refused = [cell["outputs"] for cell in book["cells"]]

    def texts(outputs):
        return [one["data"]["text/plain"] for one in outputs if one["output_type"] == "display_data"]

    assert texts(in_cell)[0].startswith("in-the-cell: finished")
    assert len(texts(in_cell)) == 1, "updated in place"
    assert in_cell[-1]["data"]["text/plain"] == "'in-the-cell'", "the cell's own result is shown as ever"
    for number, name in ((1, "in-the-cell"), (2, "thread"), (3, "interrupted")):
        assert [text for at, text in seen if at == number and text.startswith(f"{name}: running")], seen
    assert [text.split(",")[0] for text in texts(thread)] == ["thread: finished"]
    assert [text.split(",")[0] for text in texts(interrupted)] == ["interrupted: running"]
    assert [one["output_type"] for one in interrupted] == ["display_data"], "the end of a look is no error"
    assert "thread and in-the-cell" in texts(compared)[0]
    assert "<svg" in compared[0]["data"]["text/html"]
    assert texts(failed)[0].startswith("failed: failed")
    assert [one["ename"] for one in failed if one["output_type"] == "error"] == ["ZeroDivisionError"]
    usage = "; write %telemetry RUN or %telemetry compare RUN RUN, or %%telemetry above a training"
    assert refused[0]["text"].splitlines() == [
        "no run found in none (it does not exist)",
        f"'a b' is not one run{usage}",
        f"compare takes two runs or more, and 1 is named{usage}",
        f"'--cell x' is not one run{usage}",
        f"'\"' cannot be read: No closing quotation{usage}",
        f"'-v' is not one run{usage}",
    ]
