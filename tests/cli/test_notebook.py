from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

import toolkit.telemetry.cli.notebook as notebook
from tests.cli.runs import write_run
from tests.lengths import in_make_faults
from tests.project.markdown import ROOT
from tests.reports.report_parts import Page
from toolkit.telemetry import TelemetryLogger, read_run
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.reports.content import RunContent
from toolkit.telemetry.reports.run_parts import verdict_of

HOSTILE = "</style></svg><script>alert(1)</script><img src=https://evil.example/x onerror=alert(1)>\x1b[31m"


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch):
    monkeypatch.setattr(notebook, "_WAIT_S", 1000.0)
    monkeypatch.setattr(notebook, "_AGAIN_S", 1000.0)


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
    assert "step 1,200 of 1,200" in page.text
    assert "train_loss is NaN or infinite from step 800" in page.text
    assert "CRITICAL: Not a number: train_loss" in shown["text/plain"]
    assert "\x1b" not in shown["text/plain"]
    assert len(shown["text/html"]) < 100_000
    assert "<script>alert(1)</script>" in page.text, "it is shown as text"
    assert [one["class"] for one in page.all("rect")].count("nan") == 1
    assert "highest 5" in page.all("svg")[0]["aria-label"], "the spike is drawn, though points are left out"
    assert "points for 1,200 records, with all extremes" in page.text


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


def test_the_bare_install_shows_the_text_and_says_what_a_report_needs(tmp_path):
    folder = write_run(tmp_path, "run", [0.5])
    code = f"""
import sys
for name in ("numpy", "pandas", "pyarrow", "PIL", "IPython"):
    sys.modules[name] = None
from toolkit.telemetry.cli.main import main
from toolkit.telemetry import read_run
data = read_run({str(folder)!r})
assert data._repr_mimebundle_() == {{"text/plain": repr(data)}}
sys.exit(main(["report", {str(folder)!r}]))
"""
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)

    assert finished.stderr == f"a report needs {install_extra('dashboard')}\n"
    assert finished.returncode == 2


def test_a_long_run_is_shown_as_far_as_it_was_read_and_read_on_when_it_is_shown_again(tmp_path, monkeypatch):
    # numpy, which the bare install lacks.
    from toolkit.telemetry.runs.findings.run_analysis import RunFindings, RunLedger
    from toolkit.telemetry.runs.sources.local_store import LocalStore

    log = hostile_run(tmp_path)
    data = read_run(log.run_folder)
    advance, refresh = RunLedger.advance, LocalStore.refresh
    with monkeypatch.context() as patch:
        # What a look of a second gets of millions of records.
        patch.setattr(RunFindings, "advance", lambda *_: 0.4)
        patch.setattr(RunLedger, "advance", lambda *a, **b: replace(advance(*a, **b), fraction=0.4))
        patch.setattr(LocalStore, "refresh", lambda store, key, **_: refresh(store, key, wait_s=1000.0))
        patch.setattr(notebook, "_WAIT_S", 0.0)
        shown = data._repr_mimebundle_()["text/plain"]
        assert "1 warning in the 40 % of the records examined so far." in shown
        assert "Goodput" not in shown, "of a part it would be wrong"
    shown = data._repr_mimebundle_()["text/plain"]
    assert "so far" not in shown
    part = RunContent(name="long", status="finished", records=9, examined=0.4)
    assert [verdict_of(one)[1] for one in (part, replace(part, examined=1.0))] == ["neutral", "good"]
    assert "Goodput" in shown


SHELL = """
import json
from types import SimpleNamespace
import asyncio, sys, time
from traitlets.config import Config
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.displaypub import CapturingDisplayPublisher
import toolkit.telemetry.cli.notebook as notebook
from toolkit.telemetry.core import lifetime
from toolkit.telemetry.runs.findings.run_analysis import RunFindings
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry import TelemetryLogger

def interrupt(_seconds):
    raise KeyboardInterrupt

notebook._APPEARS_S, notebook._WAIT_S, notebook._AGAIN_S, notebook._END_S = 0.0, 1000.0, 1000.0, 1000.0
shell = InteractiveShell.instance(
    config=Config(HistoryManager={"enabled": False}), display_pub_class=CapturingDisplayPublisher
)
shell.run_cell("%load_ext toolkit.telemetry.notebook")
options = dict(log_dir="logs", system=False, quiet=True, log_every=1)
shell.push(dict(TelemetryLogger=TelemetryLogger, asyncio=asyncio, options=options))
log = TelemetryLogger("live", **options)
log.log_step(1, train_loss=0.5)
log.flush(100.0)
with TelemetryLogger("ended", **options) as ended:
    ended.log_step(1, train_loss=0.5)
for name, text in json.load(sys.stdin).items():
    shell.display_pub.outputs.clear()
    notebook.time = SimpleNamespace(**vars(time) | ({"sleep": interrupt} if name == "interrupted" else {}))
    if name == "long":
        advance, RunFindings.advance, notebook._WAIT_S = RunFindings.advance, lambda *_: 0.4, 0.0
        refresh = LocalStore.refresh
        LocalStore.refresh = lambda store, key, **_: refresh(store, key, wait_s=1000.0)
        notebook.time.sleep = lambda _seconds: setattr(RunFindings, "advance", advance)
    done = shell.run_cell(text)
    error = done.error_before_exec or done.error_in_exec
    texts = [one["data"]["text/plain"] for one in shell.display_pub.outputs]
    # The last line: those before are of the shell, which prints errors.
    print()
    print(json.dumps([name, texts, done.result, error and f"{type(error).__name__}: {error}"]))
log.close()
print(json.dumps(["left", [], len(lifetime._followers), None]))
"""


def test_the_magics_take_any_cell_and_refuse_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("TELEMETRY_LOG_DIR", raising=False)
    refused = {
        "%telemetry none": "no run found in none (it does not exist)",
        "%telemetry a b": "'a b' is not one run",
        "%telemetry compare live": "compare takes two runs or more, and 1 is named",
        '%telemetry "': "'\"' cannot be read: No closing quotation",
        "%telemetry -v": "'-v' is not one run",
        "%%telemetry live\n1": "%%telemetry takes no run, and 'live' is named",
    }
    usage = "; write %telemetry RUN or %telemetry compare RUN RUN, or %%telemetry above a training"
    cells = {text: text for text in refused} | {
        "interrupted": "%telemetry live",
        "long": "%telemetry ended",
        "compared": "%telemetry compare live ended",
        "cell": "%%telemetry\nwith TelemetryLogger('x', **options): ...\nawait asyncio.sleep(0, 5)",
        "twice": "%%telemetry\n%%telemetry\n%%capture found\nprint(6)",
        "found": "found.stdout",
        "error": "%%telemetry\n1 / 0",
        "syntax": "%%telemetry\na = = 1",
        "unloaded": "%unload_ext toolkit.telemetry.notebook",
        "gone": "%telemetry live",
    }
    finished = subprocess.run(
        [sys.executable, "-c", SHELL], input=json.dumps(cells), cwd=tmp_path, capture_output=True, text=True
    )
    printed = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith('["')]
    found = {name: (texts, result, error) for name, texts, result, error in printed}

    assert finished.returncode == 0, finished.stderr
    for text, said in refused.items():
        whole = said if "does not exist" in said else said + usage
        assert found[text] == ([], None, f"UsageError: {whole}")
    [text], _, error = found["interrupted"]
    assert text.startswith("### live\n"), "shown once, and its end is no error"
    assert error is None
    texts, _, error = found["long"]
    assert ["in the 40 % of the records examined so far" in text for text in texts] == [True, False]
    assert error is None
    assert "live and ended" in found["compared"][0][0]
    texts, result, error = found["cell"]
    assert texts[-1].startswith("### x\n\n**Finished.")
    assert (result, error) == (5, None)
    assert found["twice"][2] is None
    assert found["found"][1] == "6\n"
    assert found["error"][2] == "ZeroDivisionError: division by zero"
    assert found["syntax"][2].startswith("SyntaxError")
    assert found["gone"][2].startswith("UsageError: Line magic function `%telemetry` not found")
    assert found["left"][1] == 0, "nothing follows loggers after a cell"


CELLS = [
    """
import os, signal, threading, time
from IPython.display import DisplayHandle
import toolkit.telemetry.cli.notebook as notebook
from toolkit.telemetry import TelemetryLogger

%load_ext toolkit.telemetry.notebook
notebook._EVERY_S, notebook._PAUSES, notebook._APPEARS_S, notebook._END_S = 0.05, 0, 100.0, 100.0
updates, update = [], DisplayHandle.update

def recorded(self, shown, **named):
    update(self, shown, **named)
    updates.append(shown["text/plain"])

DisplayHandle.update = recorded

def train(name, also=lambda: None):
    with TelemetryLogger(name, log_dir="logs", log_every=1, system=False, quiet=True) as log:
        step = 0
        while not any(f"### {name}" in text and "**Running" in text for text in updates):  # it is shown while it trains
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
]


@in_make_faults
def test_a_kernel_shows_runs_live_in_place_and_compares_them(tmp_path, monkeypatch):
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
    client = Client(
        book,
        timeout=200,
        startup_timeout=200,
        allow_errors=True,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    _, in_cell, thread, interrupted, compared, failed = [cell["outputs"] for cell in book["cells"]]

    def texts(outputs):
        return [one["data"]["text/plain"] for one in outputs if one["output_type"] == "display_data"]

    assert texts(in_cell)[0].startswith("### in-the-cell\n\n**Finished")
    assert len(texts(in_cell)) == 1, "updated in place"
    assert in_cell[-1]["data"]["text/plain"] == "'in-the-cell'", "the cell's own result is shown as ever"
    for number, name in ((1, "in-the-cell"), (2, "thread"), (3, "interrupted")):
        assert [text for at, text in seen if at == number and text.startswith(f"### {name}\n\n**Running")], (
            seen
        )
    assert [text.split(" at ")[0] for text in texts(thread)] == ["### thread\n\n**Finished"]
    assert [text.split(" at ")[0] for text in texts(interrupted)] == ["### interrupted\n\n**Running"]
    assert [one["output_type"] for one in interrupted] == ["display_data"], "the end of a look is no error"
    assert "thread and in-the-cell" in texts(compared)[0]
    assert "<svg" in compared[0]["data"]["text/html"]
    assert texts(failed)[0].startswith("### failed\n\n**Failed")
    assert [one["ename"] for one in failed if one["output_type"] == "error"] == ["ZeroDivisionError"]
