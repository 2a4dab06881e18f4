"""`telemetry ls` and the Runs page are one list: the same runs, words, numbers and order, in the bare install too."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.importers.samples import ours
from tests.made_runs import write_run
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.core.user_folders import labels_dir
from toolkit.telemetry.importers.summary import number
from toolkit.telemetry.runfolder.labels import Labels
from toolkit.telemetry.runs.listing import foreign_runs
from toolkit.telemetry.runs.store import RunQuery, card_labels

WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "pandas", "pyarrow", "streamlit", "plotly"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from toolkit.telemetry.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def logs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    root = tmp_path / "logs"
    for status in ("running", "starting", "stalled", "finished", "stopped", "failed", "lost"):
        records = [] if status == "starting" else None
        start = {"config": {"lr": 0.1}}
        write_run(root, status, records, status=status, start=start, tags=(status,), project="p")
    write_run(root, "no manifest", status=None)
    write_run(root, "empty", [], sessions=[range(3)])
    write_run(root, "called otherwise", labels=Labels(display_name="finished", tags=("x",)))
    (write_run(root, "damaged") / "run.json").write_text("{")
    (root / "table").mkdir()
    (root / "table" / "metrics.csv").write_text("step,loss,lr\n0,nan,0.1\n1,0.5,0.1\n")
    for tool in ("tensorboard", "wandb", "mlflow_files", "trackio"):
        shutil.copytree(ours() / tool, root / "others" / tool)
    now = time.time()
    # A machine that pauses between two lists would find the live run stalled in the second.
    monkeypatch.setattr(time, "time", lambda: now)
    return root


def listed_by_the_command(capsys, *arguments):
    capsys.readouterr()
    main(["ls", *map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)["runs"]


def listed_by_the_page(store, order):
    # Paged, as a page asks for them.
    cards = store.list_runs(RunQuery(sort=order, page=1, per_page=1_000)).cards
    labels = card_labels(cards)
    return [
        {
            "name": card.name,
            "label": labels[card.key].text,
            "path": str(card.path),
            "format": card.format,
            "id": card.id or None,
            "status": card.status.name,
            "step": card.step,
            "loss": None if card.loss is None else number(card.loss),
            "loss_metric": card.loss_metric,
            "started": card.created,
            "last_sign": card.last_sign,
            "project": card.project,
            "tags": list(card.tags),
            "deleted": False,
            "problem": card.problem,
        }
        for card in cards
    ]


def test_the_command_and_the_page_list_the_same(logs, capsys, monkeypatch):
    pytest.importorskip("numpy")
    from toolkit.telemetry.runs.sources.local_store import LocalStore

    for name in ("_FIRST_WAIT_S", "_WITH_OURS_S"):
        monkeypatch.setattr(foreign_runs, name, 600.0)
    store = LocalStore([logs], cache_dir=None, labels_dir=labels_dir(), other_tools=True)
    others = [card for card in store.list_runs().cards if card.logged_by is not None]
    store.label(others[0].key, replace(store.meta(others[0].key).labels, display_name="mine"))
    store.delete(others[1].key)

    for order in ("last sign", "loss", "-loss", "name", "status", "started", "learning_rate"):
        by_page = listed_by_the_page(store, order)
        sort = [f"--sort={order.removeprefix('-')}", *(["--reverse"] if order.startswith("-") else [])]
        by_command = listed_by_the_command(capsys, logs, *sort)

        assert len(by_page) > 15
        assert {"mine", "finished"} <= {run["name"] for run in by_page}
        assert {run["status"] for run in by_page} >= {"starting", "stalled", "lost", "no end", "unreadable"}
        assert [{name: run[name] for name in by_page[0]} for run in by_command] == by_page, order


def test_the_list_needs_no_package_beyond_the_bare_install(logs, capsys):
    expected = listed_by_the_command(capsys, logs)

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "ls", logs, "--json"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)["runs"]
    alike = ("name", "label", "status", "step", "loss", "last_sign", "problem")
    assert [[run[name] for name in alike] for run in found] == [
        [run[name] for name in alike] for run in expected
    ]
