"""The name `telemetry` in the tables of transformers and Accelerate; stand-ins of both show when it gets there.

The tests of both integrations train by name with the real ones.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ai_toolkit_telemetry.run import main
from tests.fork_server import ROOT, run_python

FILES = {
    "transformers/__init__.py": "",
    "transformers/integrations/__init__.py": "",
    "transformers/integrations/integration_utils.py": "INTEGRATION_TO_CALLBACK = {'wandb': object}\n",
    "accelerate/__init__.py": "",
    "accelerate/tracking.py": "LOGGER_TYPE_TO_CLASS = {}\n",
    "train.py": "import sys, theirs\nassert __name__ == '__main__'\nprint('done', sys.argv, *theirs.names)\n",
    "theirs.py": (
        "from accelerate import tracking\n"
        "from transformers.integrations import integration_utils as utils\n"
        "names = [*utils.INTEGRATION_TO_CALLBACK, *tracking.LOGGER_TYPE_TO_CLASS]\n"
    ),
}
WITH_BOTH = ["wandb", "telemetry", "telemetry"]


@pytest.fixture
def folder(tmp_path):
    """A folder with stand-ins for both frameworks, which Python finds first."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder, *arguments, start=run_python):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    return start(arguments, cwd=folder, env=environ, capture_output=True, text=True, timeout=200)


def test_a_framework_that_is_imported_later_gets_the_name(folder):
    done = run(
        folder,
        "-c",
        # Some import all modules a second time, such as tests and notebooks.
        "import sys, toolkit.telemetry.integrations\n"
        "for name in [name for name in sys.modules if name.startswith('toolkit')]: del sys.modules[name]\n"
        "import toolkit.telemetry.integrations; print(sorted({'transformers', 'accelerate'} & set(sys.modules)));"
        "import theirs; print(theirs.names)",
    )

    assert done.stdout.splitlines() == ["[]", str(WITH_BOTH)], done.stderr


def test_a_framework_that_is_already_imported_gets_the_name(folder):
    done = run(
        folder,
        "-c",
        # A new interpreter: that of the other tests has the logger imported from its beginning.
        "import theirs; assert theirs.names == ['wandb']; import toolkit.telemetry.integrations, importlib;"
        "print([*theirs.utils.INTEGRATION_TO_CALLBACK, *theirs.tracking.LOGGER_TYPE_TO_CLASS]);"
        "importlib.reload(theirs.tracking); print(*theirs.tracking.LOGGER_TYPE_TO_CLASS)",
        start=lambda arguments, **how: subprocess.run([sys.executable, *arguments], **how),
    )

    assert done.stdout.splitlines() == [str(WITH_BOTH), "telemetry"], done.stderr


def test_a_name_of_their_own_and_a_version_without_a_table_stay_as_they_are(folder):
    (folder / "accelerate/tracking.py").write_text("LOGGER_TYPE_TO_CLASS = {'telemetry': 'their own'}\n")
    (folder / "transformers/integrations/integration_utils.py").write_text("")
    done = run(
        folder,
        "-c",
        "import toolkit.telemetry.integrations; from accelerate import tracking; print(tracking.LOGGER_TYPE_TO_CLASS);"
        "from transformers.integrations import integration_utils",
    )

    assert (done.stdout, done.stderr, done.returncode) == ("{'telemetry': 'their own'}\n", "", 0)


def test_the_names_can_be_switched_off(folder, monkeypatch):
    monkeypatch.setenv("TELEMETRY_REPORT_BY_NAME", "off")
    code = (
        "import sys; before = [*sys.meta_path]; from toolkit.telemetry import TelemetryLogger; import theirs;"
    )
    done = run(folder, "-c", code + "print(theirs.names, sys.meta_path == before)")

    assert done.stdout == "['wandb'] True\n", done.stderr


@pytest.mark.parametrize("arguments", [["train.py"], ["-m", "train"]], ids=["script", "module"])
def test_a_script_that_does_not_import_us_reports_by_name_when_we_run_it(folder, arguments):
    done = run(folder, "-m", "ai_toolkit_telemetry.run", *arguments, "--report_to", "telemetry")

    assert done.stdout.startswith("done ['"), done.stderr
    assert "train.py', '--report_to', 'telemetry'] wandb telemetry telemetry\n" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["-m"], ["--help"], ["missing.py"]])
def test_what_cannot_be_run_is_one_sentence(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])

    assert main() == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert said.startswith("[telemetry] ")
