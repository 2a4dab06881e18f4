from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.fork_server import A_RUN, run_python
from tests.lengths import in_make_faults
from tests.project.markdown import (
    DOCUMENTS,
    INTEGRATIONS,
    README,
    ROOT,
    anchors_missing_from,
    blocks,
    commands,
    links,
)
from toolkit.telemetry.logger.options import TelemetryOptions, options_from_config


def run(arguments, folder, imports=()):
    """Run a program with Python in a folder, and return what came of it."""
    return run_python(
        arguments,
        imports,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )


def run_block(text, folder, *frameworks):
    return run(["-c", text], folder, (*A_RUN, *frameworks))


def run_command(command, folder):
    """Run a command of a page, which must end well, and return what it printed."""
    finished = run(["-m", "toolkit.telemetry.cli", *shlex.split(command)[1:]], folder)
    assert finished.returncode == 0, f"{command}\n{finished.stdout[-2000:]}\n{finished.stderr[-2000:]}"
    return finished.stdout


@pytest.fixture(scope="module")
def folder_after_the_readme(tmp_path_factory):
    """A folder in which the README's Python was run from top to bottom, and what each block printed."""
    folder = tmp_path_factory.mktemp("readme")
    return folder, [run_block(block.text, folder) for block in blocks(README, "python")]


def test_the_python_of_the_readme_runs(folder_after_the_readme):
    _, finished = folder_after_the_readme

    assert len(finished) >= 2
    for process in finished:
        assert process.returncode == 0, process.stderr
        assert process.stderr == ""


def test_the_first_five_lines_make_the_folder_that_the_readme_shows(folder_after_the_readme):
    folder, finished = folder_after_the_readme

    assert finished[0].stdout.splitlines() == [
        "[telemetry] run_name=greyjacket",
        "[telemetry] Logging to ./logs/greyjacket/metrics.jsonl (and metrics.csv)",
    ]
    assert {"metrics.jsonl", "metrics.csv", "run.json"} <= {
        path.name for path in (folder / "logs/greyjacket").iterdir()
    }


STAND_INS = """
from toolkit.telemetry import TelemetryLogger

log = TelemetryLogger("stand-in", log_dir="./logs", log_every=1)
batches = range(3)
train = lambda batch: 1.0
save_checkpoint = set_lr_scale = lambda *arguments: None
"""
"""What a snippet that shows a part of a training script takes for granted."""


IMPORTS_FOR_LONG = {"accelerate.md", "keras.md", "lightning.md", "plain-pytorch.md", "transformers.md"}
"""Pages whose Python is run by `make faults` alone: their frameworks take many times longer than the page's code, and
tests/telemetry/integrations/ trains with each of them."""


@pytest.fixture(scope="module")
def run_python_of(folder_after_the_readme):
    """Run the Python of a page next to the run of the README, once; return what came of each block."""
    folder, _ = folder_after_the_readme

    @functools.cache
    def run_page(document):
        frameworks = ["torch"] if "import torch" in document.read_text("utf-8") else []
        return [
            run_block(STAND_INS + block.text, folder, *frameworks) for block in blocks(document, "python")
        ]

    return run_page


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(path, marks=[in_make_faults] if path.name in IMPORTS_FOR_LONG else [], id=path.name)
        for path in DOCUMENTS
        if path != README and blocks(path, "python")
    ],
)
def test_the_python_of_the_other_documents_runs_next_to_that_run(document, run_python_of):
    for finished in run_python_of(document):
        assert finished.returncode == 0, finished.stderr
        # A framework says what it likes on standard error.
        assert finished.stderr == "" or document.parent == INTEGRATIONS


@pytest.mark.parametrize("name", sorted(IMPORTS_FOR_LONG))
def test_what_the_python_of_a_page_imports_from_here_exists(name):
    [text] = [block.text for block in blocks(INTEGRATIONS / name, "python")]
    ours = [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("toolkit.")
        for alias in node.names
    ]

    assert ours
    for module, imported in ours:
        # Read: to import it takes as long as its framework.
        source = Path(importlib.util.find_spec(module).origin).read_text("utf-8")
        assert re.search(rf"\b{imported}\b", source)


AROUND_A_RUN = [ROOT / "docs" / f"{name}.md" for name in ("privacy", "spans")]
"""Pages whose commands are run as well, next to what their Python has written. Others do it for themselves, or need a
server to send to: tests/cli/test_message.py."""


@pytest.mark.parametrize("document", AROUND_A_RUN, ids=lambda path: path.name)
def test_the_commands_of_a_page_run_after_its_python(document, folder_after_the_readme, run_python_of):
    folder, _ = folder_after_the_readme
    run_python_of(document)
    ours = [command for command in commands(document) if command.startswith(".venv/bin/telemetry ")]

    assert ours, "the page shows no command"
    for command in ours:
        run_command(command, folder)


def test_the_first_hour_runs_from_top_to_bottom(tmp_path):
    page = ROOT / "docs" / "start.md"
    [block] = blocks(page, "python")
    finished = run_block(block.text, tmp_path)
    assert (finished.returncode, finished.stderr) == (0, "")
    for command in commands(page)[1:]:
        printed = run_command(command, tmp_path)

    assert "is better than" in printed


NOT_A_NUMBER = """
from toolkit.telemetry import TelemetryLogger

with TelemetryLogger("greyjacket", log_dir="./logs", log_every=1) as log:
    log.declare_action("stop")
    for step in range(1, 81):
        with log.span("forward"):
            loss = float("nan") if step in (40, 41) else 1.0 / step
        log.log_step(step, train_loss=loss)
"""

OUT_OF_MEMORY = """
from toolkit.telemetry import TelemetryLogger


class OutOfMemoryError(RuntimeError):
    pass


def attend():
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


with TelemetryLogger("greyjacket-2", log_dir="./logs") as log:
    for step in range(1, 413):
        log.log_step(step, train_loss=1.0 / step)
    with log.span("training_iteration"), log.span("forward"):
        attend()
"""


@pytest.mark.parametrize(
    ("page", "number", "script", "command"),
    [
        ("detectors", 0, NOT_A_NUMBER, ""),
        ("detectors", 1, OUT_OF_MEMORY, ""),
        ("spans", 0, NOT_A_NUMBER, ""),
        ("completions", 0, None, "telemetry show logs/rlhf --completions --search green"),
        ("errors", 0, None, "telemetry show logs/flaky --errors"),
    ],
)
def test_a_page_shows_what_its_command_prints(page, number, script, command, tmp_path):
    document = ROOT / "docs" / f"{page}.md"
    shown = blocks(document, "text")[number].text
    if not command:
        command, _, shown = shown.removeprefix("$ ").partition("\n")
    (tmp_path / "train.py").write_text(script or blocks(document, "python")[0].text)
    run(["train.py"], tmp_path, A_RUN)
    printed = run(["-m", "toolkit.telemetry.cli", *shlex.split(command)[1:]], tmp_path).stdout
    lines = iter(without_numbers(printed))

    for line in without_numbers(shown):
        # `in` moves on: the lines come in this order.
        assert line == "…" or line in lines, printed


def without_numbers(text):
    """Return the lines of `text`: numbers, such as times and sizes, differ from run to run."""
    return [re.sub(r"\d[\d.,]*", "0", line.rstrip()) for line in text.splitlines()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document):
    assert [target for target in links(document) if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_a_section_name_one_that_exists(document):
    assert anchors_missing_from(document) == []


def test_the_yaml_of_the_readme_is_a_block_that_the_logger_takes():
    for block in blocks(README, "yaml"):
        mapping = yaml.safe_load(block.text)
        for place in (mapping, {"config": mapping}, {"config": {"process": [mapping]}}):
            options = options_from_config(place)

            assert isinstance(options, TelemetryOptions)
            assert options.enabled
            assert options.log_dir == "./logs"
            assert not options.tensorboard
            assert not options.wandb


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_json_of_the_documents_is_strict(document):
    for block in blocks(document, "json"):
        # Some show one object over several lines, some one object a line.
        texts = [block.text] if block.text.startswith("{\n") else block.text.splitlines()
        for text in texts:
            json.loads(text, parse_constant=pytest.fail)


def test_the_options_of_completions_that_are_shown_are_those_without_a_block():
    [block] = blocks(ROOT / "docs" / "completions.md", "yaml")
    shown = options_from_config(yaml.safe_load(block.text)).completion_options

    assert shown == options_from_config({"telemetry": {"enabled": True}}).completion_options


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder like a fresh clone whose set-up is done; what is made in it stays out of the real one."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in "Makefile run.py run_dashboard.py config toolkit dashboard pyproject.toml".split():
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


SHORTENED = {
    ".venv/bin/python run.py config/examples/train_lora_tiny_cpu_with_telemetry.yaml": (
        ".venv/bin/python run.py config/examples/train_lora_tiny_cpu_with_telemetry.yaml --steps 2"
    ),
    # It serves until it is stopped; tests/dashboard/test_launcher.py starts and stops it.
    ".venv/bin/python run_dashboard.py --log-dir ./logs": ".venv/bin/python run_dashboard.py --help",
}
"""What takes minutes, and the short form of the same that is run here."""

NOT_RUN = {"pip install .", "make test", "make run"}
"""The first would change this environment (test_packaging looks into what it installs); the second is running now;
the third serves until it is stopped, which test_makefile.py tries."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_commands_of_the_readme_run_one_after_the_other(checkout):
    for command in commands(README):
        if command in NOT_RUN:
            continue
        finished = subprocess.run(
            shlex.split(SHORTENED.get(command, command)),
            cwd=checkout,
            capture_output=True,
            text=True,
            timeout=240,
        )

        assert finished.returncode == 0, f"{command}\n{finished.stdout[-2000:]}\n{finished.stderr[-2000:]}"


def test_commands_that_are_not_run_are_still_in_the_readme():
    assert set(commands(README)) >= NOT_RUN | set(SHORTENED)


@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if path != README], ids=lambda path: path.name
)
def test_make_targets_that_documents_name_exist(document):
    for command in commands(document):
        words = shlex.split(command)
        if words[0] == "make":
            finished = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)

            assert finished.returncode == 0, finished.stderr
        elif words[1:2] == ["-m"]:
            assert (
                Path(ROOT, *words[2].split(".")).with_suffix(".py").exists() or Path(ROOT, words[2]).is_dir()
            )
