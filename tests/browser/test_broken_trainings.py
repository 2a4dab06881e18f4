"""Trainings of the example with something really wrong: the page says what, while they run, and why."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import refresh_every, status
from tests.lengths import is_long
from tests.waiting import wait_until
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE

pytest.importorskip("torch")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not is_long(), reason="five trainings of half a minute each are for make faults"),
]

_PROGRAM = Path(__file__).with_name("broken_training.py")
_SAID = {
    "nan": "NaN or infinite from step 60 on",
    "spike": "at step 60",
    "divergence": re.compile("left its level|has been climbing since step"),
    "plateau": "has not improved since step",
    "overfit": "while the training loss does not rise",
}
_PATIENCE_MS = 200_000

KINDS = ["nan", "spike", "divergence", "overfit", "plateau"]


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    return serve(tmp_path_factory.mktemp("logs"))


class Breaking:
    """A training process with one fault, stopped once it has been seen."""

    def __init__(self, kind, root, output):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with open(output, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(_PROGRAM), kind, str(root)],
                cwd=Path(__file__).parents[2],
                env={**environment, "PYTHONPATH": str(Path(__file__).parents[2])},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def is_running(self):
        return self.process.poll() is None

    def stop(self):
        if self.is_running:
            self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def breaking(shown, tmp_path_factory):
    """The slowest to be noticed is begun first; the others when they are looked at, so that two cores are enough."""
    started = {}
    folder = tmp_path_factory.mktemp("output")

    def begin(kind):
        if kind not in started:
            started[kind] = Breaking(kind, shown.root, folder / kind)
        return started[kind]

    begin("plateau")
    yield begin
    for training in started.values():
        training.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_is_broken_is_explained_while_it_runs(shown, breaking, page, kind):
    training = breaking(kind)
    wait_until_it_logs(shown.root / kind, training)
    shown.open(page, "/alerts", run=kind)
    refresh_every(page, "2 s")
    expect(status(page)).to_contain_text("Running")

    expect(page.get_by_text(_SAID[kind]).first).to_be_visible(timeout=_PATIENCE_MS)
    expect(page.get_by_text(CATALOGUE[kind].title, exact=True).first).to_be_visible()
    assert training.is_running
    page.get_by_text("Likely causes").first.wait_for(state="attached")
    if page.get_by_text("Likely causes").first.is_hidden():
        page.get_by_text("Evidence and what to try").first.click()
    expect(page.get_by_text("Likely causes").first).to_be_visible()
    expect(page.get_by_text(CATALOGUE[kind].causes[0]).first).to_be_visible()
    training.stop()


def wait_until_it_logs(folder, training):
    wait_until(lambda: (folder / "metrics.jsonl").exists() or not training.is_running)
    assert training.is_running
