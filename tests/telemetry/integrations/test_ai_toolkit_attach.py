"""The extension file, in a fake checkout whose `toolkit` is its own package, as in ai-toolkit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S
from toolkit.telemetry.integrations.ai_toolkit.attach import (
    IMPORT_FIRST,
    AttachError,
    attach,
    attached_file,
    detach,
    extension_text,
)

ROOT = Path(__file__).parents[3]
FAKE = Path(__file__).with_name("fake_ai_toolkit.py")

RUN_PY = """
import os, sys
sys.path.insert(0, os.getcwd())
import json
from toolkit.job import get_job

with open(sys.argv[1]) as file:
    config = json.load(file)
job = get_job(config)
try:
    job.process[0].run()
except Exception as error:
    job.process[0].on_error(error)
    raise
print("trained to", job.process[0].step_num)
"""

JOB_PY = """
import importlib, pkgutil
from jobs.process import Job, SDTrainer
import toolkit.own_module

def get_job(config):
    # Not caught: what fails there ends the job.
    for found in pkgutil.iter_modules(["extensions"]):
        importlib.import_module("extensions." + found.name)
    job = Job(config)
    job.process = [SDTrainer(i, job, process) for i, process in enumerate(config["config"]["process"])]
    return job
"""


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    (folder / "toolkit").mkdir(parents=True)
    (folder / "jobs" / "process").mkdir(parents=True)
    (folder / "extensions").mkdir()
    (folder / "run.py").write_text(RUN_PY)
    (folder / "toolkit" / "__init__.py").write_text(
        "# A regular package, which hides every other of its name.\n"
    )
    (folder / "toolkit" / "own_module.py").touch()
    (folder / "toolkit" / "job.py").write_text(JOB_PY)
    (folder / "jobs" / "__init__.py").touch()
    shutil.copy(FAKE, folder / "jobs" / "process" / "__init__.py")
    return folder


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.json"
    process = {
        "type": "sd_trainer",
        "training_folder": "output",
        "telemetry": {"log_dir": "logs", "log_every": 1, "close_timeout": PATIENCE_S},
        "train": {"steps": 5},
    }
    path.write_text(json.dumps({"job": "extension", "config": {"name": "greyjacket", "process": [process]}}))
    return path


def start(checkout, job, *flags, **variables):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *flags, "run.py", str(job)],
        cwd=checkout,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=200,
    )


def steps_of(checkout):
    return len(read_records(checkout / "logs" / "greyjacket" / "metrics.jsonl", "step"))


def test_an_attached_checkout_records_its_jobs_and_a_detached_one_does_not(checkout, job):
    path = attach(checkout)
    finished = start(checkout, job)

    assert path == checkout / "extensions" / "ai_toolkit_telemetry.py"
    assert finished.returncode == 0, finished.stderr
    assert "trained to 5" in finished.stdout
    assert "[telemetry] run_name=greyjacket" in finished.stdout
    assert steps_of(checkout) == 5

    assert detach(checkout) == path
    assert [found.name for found in (checkout / "extensions").rglob("*") if found.is_file()] == []
    shutil.rmtree(checkout / "logs")
    shutil.rmtree(checkout / "output")
    assert start(checkout, job).returncode == 0
    assert not (checkout / "logs").exists()


@pytest.mark.parametrize("fault", ["gone", "broken", "another ai-toolkit"])
def test_a_broken_extension_file_reports_it_and_the_job_is_trained(fault, checkout, job, tmp_path):
    folder = tmp_path / "toolkit"
    # Without packages: else this project, installed for development, would be found after all.
    flags = ["-S"]
    if fault == "broken":
        (tmp_path / "ai_toolkit_telemetry.py").write_text("import a_module_that_does_not_exist\n")
    if fault == "another ai-toolkit":
        folder, flags = ROOT / "toolkit", []
        trainers = checkout / "jobs" / "process" / "__init__.py"
        trainers.write_text(trainers.read_text().replace("BaseSDTrainProcess", "AnotherTrainProcess"))
    (checkout / "extensions" / "ai_toolkit_telemetry.py").write_text(extension_text(folder))
    finished = start(checkout, job, *flags)

    assert finished.returncode == 0, finished.stderr
    assert "trained to 5" in finished.stdout
    assert "[telemetry] this job is not recorded" in finished.stderr


def test_a_package_that_has_moved_is_found_where_python_finds_packages(checkout, job, tmp_path):
    (checkout / "extensions" / "ai_toolkit_telemetry.py").write_text(extension_text(tmp_path / "gone"))
    finished = start(checkout, job, PYTHONPATH=str(ROOT))

    assert finished.returncode == 0, finished.stderr
    assert steps_of(checkout) == 5


def test_a_file_of_another_installation_is_replaced(checkout):
    path = attach(checkout)
    path.write_text(extension_text(Path("/elsewhere/toolkit")))
    assert attached_file(checkout) != (path, extension_text())

    assert attach(checkout) == path
    assert attached_file(checkout) == (path, extension_text())


@pytest.mark.parametrize("do", [attach, detach, attached_file])
def test_a_foreign_file_is_left_alone(do, checkout):
    theirs = checkout / "extensions" / "ai_toolkit_telemetry.py"
    theirs.write_text("# mine\n")
    with pytest.raises(AttachError, match="left alone"):
        do(checkout)

    assert theirs.read_text() == "# mine\n"


def test_a_checkout_with_its_own_telemetry_is_refused(checkout):
    (checkout / "toolkit" / "telemetry.py").touch()
    with pytest.raises(AttachError, match=r"its own telemetry\. Move it away .* stay readable"):
        attach(checkout)

    assert attached_file(checkout)[1] is None


def test_a_script_in_an_attached_checkout_can_import_the_logger(checkout):
    attach(checkout)
    (checkout / "run.py").write_text(
        "import sys\n"
        "import toolkit\n"
        "assert toolkit.__file__.startswith(sys.path[0])\n"
        # Without what an editable install of this package finds apart from the path.
        "sys.meta_path[:] = [finder for finder in sys.meta_path if 'editable' not in str(finder).lower()]\n"
        "try:\n    import toolkit.telemetry\nexcept ModuleNotFoundError:\n    pass\nelse:\n    sys.exit(7)\n"
        + "\n".join(IMPORT_FIRST)
        + "\nwith TelemetryLogger('mine', './logs', system=False) as log:\n    log.log_step(1, train_loss=0.5)\n"
    )
    finished = start(checkout, "no job")

    assert finished.returncode == 0, finished.stderr
    assert len(read_records(checkout / "logs" / "mine" / "metrics.jsonl", "step")) == 1
