from __future__ import annotations

import pytest

from toolkit.telemetry.cli.main import main


@pytest.fixture
def checkout(tmp_path):
    """A folder that looks like an ai-toolkit checkout."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "toolkit").mkdir()
    (tmp_path / "toolkit" / "job.py").touch()
    return tmp_path


def test_attach_status_and_detach_report_what_they_did(checkout, capsys):
    assert main(["setup", "ai-toolkit", "status", str(checkout)]) == 1
    assert capsys.readouterr().out.startswith("Not attached")

    assert main(["setup", "ai-toolkit", "attach", str(checkout)]) == 0
    capsys.readouterr()
    assert main(["setup", "ai-toolkit", "status", str(checkout)]) == 0
    said = capsys.readouterr().out
    assert "for jobs with a telemetry: block" in said
    assert "'import extensions.ai_toolkit_telemetry' before 'from toolkit.telemetry import" in said

    assert main(["setup", "ai-toolkit", "detach", str(checkout)]) == 0
    assert "Removed " in capsys.readouterr().out
    assert main(["setup", "ai-toolkit", "detach", str(checkout)]) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_status_reports_a_file_of_another_version(checkout, capsys):
    main(["setup", "ai-toolkit", "attach", str(checkout)])
    path = checkout / "extensions" / "ai_toolkit_telemetry.py"
    path.write_text(path.read_text() + "\n")
    capsys.readouterr()

    assert main(["setup", "ai-toolkit", "status", str(checkout)]) == 0
    assert "by another version or installation" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["attach", "detach", "status"])
def test_a_folder_that_is_not_a_checkout_is_refused(command, tmp_path, capsys):
    assert main(["setup", "ai-toolkit", command, str(tmp_path)]) == 2
    assert "not an ai-toolkit checkout" in capsys.readouterr().err
