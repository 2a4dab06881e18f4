"""A new option, exporter or sampler takes the files and lines that CONTRIBUTING.md promises, and no more."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.option_docs import documents
from toolkit.telemetry.core.fields import options_of
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.logger.training import TrainingConfig
from toolkit.telemetry.trainer.options import ProcessOptions

ROOT = Path(__file__).parents[2]

EXPORTER = """
class Toy:
    name = "toy"

    def __init__(self, path):
        self._path = path

    def write(self, batch):
        with self._path.open("a") as file:
            file.writelines(record["event"] + "\\n" for record in batch)

    def close(self):
        pass
"""

FUNCTION = """
def _toy(options, run):
    from toolkit.telemetry.mirrors.toy.exporter import Toy

    return Toy(run.folder / "toy.txt")

"""

SAMPLER = """
class ToySampler:
    name = "toy"

    def sample(self):
        return {"toy_level": 7}

    def close(self):
        pass
"""

PROGRAM = """
import time

from tests.project.option_docs import documents
from toolkit.telemetry import OptionsError, TelemetryLogger, TelemetryOptions

for wrong in ({"toy": 5}, {"toys": True}, {"toy_count": 0}):
    try:
        TelemetryLogger("run", **wrong)
    except OptionsError as error:
        print(error)
with TelemetryLogger("run", log_dir="logs", toy=True, toy_count=3, close_timeout=60.0, system_every=1.0) as log:
    deadline, records = time.monotonic() + 120, log.run_folder / "metrics.jsonl"
    # It is made in the background.
    while not (records.exists() and b"toy_level" in records.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.05)
print(TelemetryOptions(toy_count=3).toy_count)
print((log.run_folder / "toy.txt").read_text().split()[0])
print(b"toy_level" in (log.run_folder / "metrics.jsonl").read_bytes())
for name, content in documents().items():
    print(name, "toy" in content, "toy_count" in content)
"""


def insert(path, before, line):
    """Add `line` right before the first line that contains `before`."""
    text = path.read_text()
    at = text.rindex("\n", 0, text.index(before)) + 1
    path.write_text(text[:at] + line + "\n" + text[at:])


def test_an_exporter_a_sampler_and_an_option_are_added_where_the_table_says(tmp_path):
    shutil.copytree(
        ROOT / "toolkit", tmp_path / "toolkit", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")
    )
    mirrors = tmp_path / "toolkit/telemetry/mirrors"
    samplers = tmp_path / "toolkit/telemetry/logger/machine/samplers"
    (tmp_path / "tests/project").mkdir(parents=True)
    shutil.copy(ROOT / "tests/project/option_docs.py", tmp_path / "tests/project")
    (mirrors / "toy").mkdir()
    (mirrors / "toy/exporter.py").write_text(EXPORTER)
    registry = mirrors / "registry.py"
    insert(registry, "    wandb: bool", '    toy: bool = option(False, "Write a toy file.", boolean)')
    insert(registry, "def _wandb(", FUNCTION)
    insert(registry, '    Exporter("wandb"', '    Exporter("toy", _toy),')
    (samplers / "toy.py").write_text(SAMPLER)
    insert(
        samplers / "registry.py",
        "SAMPLERS: Final",
        "from toolkit.telemetry.logger.machine.samplers.toy import ToySampler",
    )
    insert(
        samplers / "registry.py",
        "    lambda _, guard: HostSampler",
        "    lambda log_dir, guard: ToySampler(),",
    )
    insert(
        tmp_path / "toolkit/telemetry/logger/options/telemetry_options.py",
        "    strict: bool = option",
        '    toy_count: int = option(1, "Number of toys.", whole(1, 9))',
    )

    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    lines = [line for line in ran.stdout.splitlines() if not line.startswith("[telemetry]")]
    assert len(lines) == 8, ran.stderr
    assert lines[0] == "telemetry.toy is 5; it must be true or false"
    assert "telemetry.toys (with the value True) is not an option; did you mean 'toy'?" in lines[1]
    assert lines[2] == "telemetry.toy_count is 0; it must be a whole number from 1 to 9"
    assert lines[3:] == [
        "3",
        "start",
        "True",
        "docs/options.md True True",
        "toolkit/telemetry/logger/options/options_dict.py True True",
    ]


def test_the_generated_files_are_up_to_date():
    for name, content in documents().items():
        assert (ROOT / name).read_text() == content, f"{name} is stale: run `make docs`"


def blocks(cls):
    yield cls
    for about in options_of(cls).values():
        if about.check.block is not None:
            yield from blocks(about.check.block())


@pytest.mark.parametrize("cls", [TelemetryOptions, TrainingConfig, ProcessOptions])
def test_every_option_is_described_in_one_line_and_says_what_is_allowed(cls):
    for block in blocks(cls):
        for name, about in options_of(block).items():
            assert about.description.endswith("."), (block, name)
            assert "\n" not in about.description, (block, name)
            assert about.check.allowed, (block, name)


def test_the_type_of_the_overrides_has_every_option():
    module = ast.parse((ROOT / "toolkit/telemetry/logger/options/options_dict.py").read_text())
    [typed] = [node for node in module.body if isinstance(node, ast.ClassDef)]

    names = {node.target.id for node in typed.body if isinstance(node, ast.AnnAssign)}
    assert names == set(options_of(TelemetryOptions))
