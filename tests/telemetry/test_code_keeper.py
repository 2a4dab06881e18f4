"""The code that a session keeps: real repositories, real files, and what must not be in them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine import repository as repository_module
from toolkit.telemetry.logger.machine.own_code import find_own_code, own_modules
from toolkit.telemetry.logger.machine.repository import describe_repository
from toolkit.telemetry.logger.session import code_keeper
from toolkit.telemetry.logger.session.code_keeper import CodeKeeper
from toolkit.telemetry.runfolder.evidence.code_snapshot import MOST_BYTES, changed_files, read_code
from toolkit.telemetry.runfolder.layout import PRIVATE

TOKEN = "hf_" + "a1B2c3D4e5" * 3
KEY = (
    "-----BEGIN PRIVATE KEY-----\n"
    + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\n" * 90
)
PATIENCE_S = 100.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    monkeypatch.setattr(repository_module, "GIT_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(code_keeper, "_MOST_WORK_S", PATIENCE_S)


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a script that has imported a module of its own."""
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("import lib.x\nlr = 1e-4\n")
    (folder / "lib" / "x.py").write_text("x = 1\n")
    is_main(monkeypatch, folder / "train.py")
    imports(monkeypatch, "lib.x", folder / "lib" / "x.py")
    return folder


@pytest.fixture
def repository(project):
    git(project, "init")
    git(project, "add", "-A")
    git(project, "commit", "-m", "first")
    return project


def is_main(monkeypatch, file):
    main = ModuleType("__main__")
    if file is not None:
        main.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "__main__", main)


def imports(monkeypatch, name, file):
    module = ModuleType(name)
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, name, module)


def keeper_of(folder, session=1, said=None, guard=None, *, with_changes=True):
    folder.mkdir(exist_ok=True)
    of_session = SimpleNamespace(session=session, started=time.time())
    return CodeKeeper(
        SimpleNamespace(folder=folder, modes=PRIVATE, session=of_session),
        lambda fields, is_last: is_last and (said.append(fields) if said is not None else True) is not False,
        guard or Guard(),
        with_changes=with_changes,
    )


def keep(folder, session=1, *, with_changes=True):
    """Keep the code as a session does, and return what is read of it, and the record."""
    said, guard = [], Guard()
    keeper = keeper_of(folder, session, said, guard, with_changes=with_changes)
    keeper.job.start()
    keeper.close(PATIENCE_S)
    assert guard.counts == {}
    return read_code(folder)[session], said[-1]


def test_a_clean_repository_is_kept_as_commit_script_and_modules(repository, tmp_path):
    code, record = keep(tmp_path / "run")

    assert (code.kind, code.branch, code.dirty, code.script) == ("git", "main", False, "train.py")
    assert len(code.commit) == 40
    assert {name: code.text(name) for name in code.files} == {
        "train.py": "import lib.x\nlr = 1e-4\n",
        "lib/x.py": "x = 1\n",
    }
    assert (code.diff, code.left_out, code.problem) == (None, {}, None)
    assert record["path"] == "code/1.json"
    assert (record["files"], record["bytes"], record["commit"]) == (2, 29, code.commit)


def test_without_the_changes_no_program_is_started(repository, tmp_path, monkeypatch):
    (repository / "train.py").write_text("lr = 2\n")
    (repository / "new.py").write_text("")
    monkeypatch.setattr(subprocess, "Popen", None)

    code, _ = keep(tmp_path / "run", with_changes=False)

    assert (code.kind, code.branch, code.dirty, code.diff) == ("git", "main", None, None)
    assert set(code.files) == {"train.py", "lib/x.py"}


def test_changes_and_new_sources_are_kept_and_what_is_left_out_is_named(repository, tmp_path):
    (repository / "lib" / "x.py").write_text("x = 2\n")
    (repository / "new.yaml").write_text("lr: 1\n")
    (repository / "huge.json").write_bytes(b"1" * 3_000_000)
    (repository / "secrets.yaml").write_text("a: b\n")
    (repository / "latin.py").write_bytes(b"# \xe9\n")
    (repository / "data.bin").write_bytes(b"\0")
    (repository / ".gitignore").write_text("ignored.py\n")
    (repository / "ignored.py").write_text("")
    os.symlink(repository / "gone.py", repository / "broken.py")

    code, _ = keep(tmp_path / "run")

    assert code.dirty is True
    assert "-x = 1\n+x = 2\n" in code.diff
    assert set(code.files) == {"train.py", "lib/x.py", "new.yaml"}
    assert code.left_out == {
        "huge.json": "3,000,000 bytes, more than 200,000",
        "secrets.yaml": "its name says that it is a secret",
        "latin.py": "not a text in UTF-8",
        "data.bin": "no source file, by its ending",
        ".gitignore": "no source file, by its ending",
        "broken.py": "No such file or directory",
    }


def test_secrets_are_masked_in_texts_and_in_the_diff(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct horse battery")
    padding = "".join(f"value_{number} = {number}\n" for number in range(300))
    secret = f'{padding}token = "{TOKEN}"\nkey = """{KEY}-----END PRIVATE KEY-----"""\nx = "correct horse battery"\n'
    removed = 'config["api_key"] = "hunter2"\nuser, password = "jane", "hunter2"\n'
    (repository / "train.py").write_text(removed + "import lib.x\n")
    git(repository, "commit", "-am", "second")
    (repository / "train.py").write_text(secret)
    (repository / "new.py").write_text(padding + secret)

    keep(tmp_path / "run")

    kept = "".join(file.read_text() for file in (tmp_path / "run" / "code").rglob("*") if file.is_file())
    assert kept.count("value_299 = 299") == 4
    assert '-config["api_key"] = "***"\n' in kept
    for part in (TOKEN, "MIIEvQIBADAN", "VJTUt9Us8cKj", "correct horse", "hunter2"):
        assert part not in kept


def test_a_resume_keeps_only_what_changed(repository, tmp_path):
    first, _ = keep(tmp_path / "run")
    (repository / "train.py").write_text("import lib.x\nlr = 2e-4\n")
    second, record = keep(tmp_path / "run", session=2)
    third, _ = keep(tmp_path / "run", session=3)

    assert second.files["lib/x.py"] == third.files["lib/x.py"] == first.files["lib/x.py"]
    assert third.files["train.py"] == second.files["train.py"] != first.files["train.py"]
    assert third.diff == second.diff is not None
    assert sorted(os.listdir(tmp_path / "run" / "code")) == ["1", "1.json", "2", "2.diff", "2.json", "3.json"]
    assert [change.path for change in changed_files(first, second)] == ["train.py"]
    assert record["bytes"] == len("import lib.x\nlr = 2e-4\n") + len(second.diff)


def test_without_git_the_script_and_its_own_modules_are_kept(project, tmp_path, monkeypatch):
    imports(monkeypatch, "somewhere", tmp_path / "elsewhere.py")
    imports(monkeypatch, "package", project / "venv" / "lib" / "site-packages" / "package.py")
    imports(monkeypatch, "toolkit.telemetry.own", project / "train.py")
    monkeypatch.setitem(sys.modules, "odd", 3)

    code, record = keep(tmp_path / "run")

    assert (code.kind, code.commit, code.dirty, code.script) == ("files", None, None, "train.py")
    assert set(code.files) == {"train.py", "lib/x.py"}
    assert "commit" not in record


def test_modules_imported_later_are_kept_unless_they_changed_since(project, tmp_path, monkeypatch):
    keeper = keeper_of(tmp_path / "run")
    (project / "late.py").write_text("late = 1\n")
    os.utime(project / "late.py", (1, 1))
    (project / "edited.py").write_text("")
    os.utime(project / "edited.py", (2**31, 2**31))
    assert keeper.job.take_turn() is None
    (project / "train.py").write_text("an edit while it runs\n")
    imports(monkeypatch, "late", project / "late.py")
    imports(monkeypatch, "edited", project / "edited.py")
    keeper.job.take_turn()

    code = read_code(tmp_path / "run")[1]
    assert code.text("late.py") == "late = 1\n"
    assert code.text("train.py") == "import lib.x\nlr = 1e-4\n"
    assert "changed after the run had begun" in code.left_out["edited.py"]


def test_no_more_than_2_mb_are_kept_and_the_rest_is_named(project, tmp_path, monkeypatch):
    text = "value = 1\n" * 19_000
    for number in range(15):
        (project / f"m{number}.py").write_text(text)
        imports(monkeypatch, f"m{number}", project / f"m{number}.py")
    monkeypatch.setattr("toolkit.telemetry.privacy.masking.Masker.rewrite_text", lambda _, text: text)

    code, record = keep(tmp_path / "run")

    assert MOST_BYTES - len(text) < record["bytes"] <= MOST_BYTES
    assert set(code.left_out.values()) == {"the 2 MB for the code of a run were full"}
    assert len(code.files) + len(code.left_out) == 17


def test_masking_stops_when_its_time_is_over(repository, tmp_path, monkeypatch):
    monkeypatch.setattr(code_keeper, "_MOST_WORK_S", -1.0)
    (repository / "train.py").write_text("lr = 1\n")

    code, _ = keep(tmp_path / "run")

    assert (code.files, code.diff) == ({}, None)
    assert set(code.left_out) == {"train.py", "lib/x.py", "the diff"}


def test_no_program_of_the_repository_is_run(repository, tmp_path):
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    hooks = repository / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("post-index-change", "post-checkout"):
        (hooks / hook).write_text(program.read_text())
        (hooks / hook).chmod(0o755)
    settings = ("core.fsmonitor", "diff.external", "diff.mine.textconv", "diff.mine.command", "core.pager")
    for setting in settings:
        git(repository, "config", setting, str(program))
    (repository / ".gitattributes").write_text("*.py diff=mine\n")
    (repository / "train.py").write_text("lr = 2\n")
    ran.unlink(missing_ok=True)

    code, _ = keep(tmp_path / "run")

    assert "+lr = 2" in code.diff
    assert not ran.exists()


def test_a_git_that_gives_no_list_of_new_files_is_named(repository, monkeypatch, tmp_path):
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout.strip()
    slow.write_text(f'#!/bin/sh\ncase "$*" in *ls-files*) exec /bin/sleep 60;; esac\nexec {real} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent))
    monkeypatch.setattr(repository_module, "GIT_TIMEOUT_S", 1.0)

    changes = repository_module.changes_in(repository)

    assert changes.left_out == {"new files": "git did not list them within 1 s"}


def test_of_a_very_long_diff_the_first_part_is_kept(repository, monkeypatch):
    (repository / "train.py").write_text("line\n" * 4_000)
    monkeypatch.setattr(repository_module, "MOST_DIFF_BYTES", 1_000)

    changes = repository_module.changes_in(repository)

    assert len(changes.diff) <= 1_000
    assert changes.diff.endswith("+line\n")
    assert list(changes.left_out) == ["the rest of the diff"]


@pytest.mark.parametrize("main", [None, "venv/bin/accelerate", "lib/site-packages/torch/run.py", "gone.py"])
def test_without_a_script_of_its_own_the_current_folder_counts(repository, main, monkeypatch):
    file = None if main is None else repository / main
    if file is not None and main != "gone.py":
        file.parent.mkdir(parents=True)
        file.write_text("installed\n")
    is_main(monkeypatch, file)
    monkeypatch.chdir(repository / "lib")

    code = find_own_code()

    assert (code.root, code.script, code.has_git) == (repository, None, True)
    assert {name for name in own_modules(code.root) if os.path.exists(name)} == {
        str(repository / "lib" / "x.py")
    }


def test_a_script_keeps_its_code_and_one_that_asks_for_none_keeps_none(tmp_path, monkeypatch):
    (tmp_path / "helper.py").write_text("VALUE = 3\n")
    script = tmp_path / "train.py"
    script.write_text(
        "from toolkit.telemetry import TelemetryLogger\n"
        "for code in (True, False):\n"
        "    with TelemetryLogger(f'r{code}', 'logs', system=False, code=code, close_timeout=60.0) as log:\n"
        "        log.log_step(1, train_loss=0.5)\n"
        "        import helper\n"
    )
    monkeypatch.delenv("TELEMETRY_CODE")

    subprocess.run([sys.executable, script], cwd=tmp_path, check=True, capture_output=True)

    code = read_code(tmp_path / "logs" / "rTrue")[1]
    assert set(code.files) == {"train.py", "helper.py"}
    assert code.text("train.py") == script.read_text()
    lines = (tmp_path / "logs" / "rTrue" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert events.count("code") == 1
    assert events.index("start") < events.index("code") < events.index("end")
    assert "code" not in (tmp_path / "logs" / "rTrue" / "metrics.csv").read_text()
    assert not (tmp_path / "logs" / "rFalse" / "code").exists()


def test_a_script_that_ends_at_once_keeps_its_own_repository(repository, tmp_path, monkeypatch):
    (repository / "train.py").write_text(
        "from toolkit.telemetry import TelemetryLogger\n"
        f"log = TelemetryLogger('r', {str(tmp_path)!r}, system=False, close_timeout=60.0)\n"
        "log.log_step(1, train_loss=0.5)\n"
    )
    monkeypatch.delenv("TELEMETRY_CODE")

    subprocess.run([sys.executable, repository / "train.py"], cwd=tmp_path, check=True, capture_output=True)

    code = read_code(tmp_path / "r")[1]
    assert (code.kind, code.script, set(code.files)) == ("git", "train.py", {"train.py"})


def test_a_variable_turns_it_off(tmp_path):
    assert os.environ["TELEMETRY_CODE"] == "0"
    with TelemetryLogger("r", tmp_path, system=False) as log:
        log.log_step(1, train_loss=0.5)

    assert not (tmp_path / "r" / "code").exists()


def test_neither_a_link_nor_a_line_of_the_diff_leads_out_of_the_repository(repository, tmp_path):
    (tmp_path / "outside.json").write_text('"private"')
    os.symlink(tmp_path / "outside.json", repository / "link.json")
    (repository / "notes.txt").write_text("++ b/../outside.json\n")
    git(repository, "add", "-N", "notes.txt")

    code, _ = keep(tmp_path / "run")

    why = "a link to a file outside of the folder of the code"
    assert (code.left_out["link.json"], code.left_out["../outside.json"]) == (why, why)
    assert {file.name for file in (tmp_path / "run").rglob("*.json")} == {"1.json"}


def test_new_data_take_no_room_from_the_modules_and_are_counted(repository, tmp_path, monkeypatch):
    monkeypatch.setattr(code_keeper, "_MOST_NEW", 3)
    for number in range(9):
        (repository / f"label{number}.json").write_text(str(number))
    (repository / "new.py").write_text("new = 1\n")

    code, record = keep(tmp_path / "run")

    assert set(code.files) == {"train.py", "lib/x.py", "new.py", "label0.json", "label1.json"}
    assert len(code.left_out) == 4
    assert code.left_out["other files"] == "4 more, which are not named one by one"
    assert record["left_out"] == 7


def test_variables_of_git_do_not_lead_to_another_repository(repository, tmp_path, monkeypatch):
    commit = describe_repository()["commit"]
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))

    assert describe_repository()["commit"] == commit


def test_modules_next_to_a_script_in_the_root_of_the_disk_are_its_own(monkeypatch):
    imports(monkeypatch, "model", f"{os.sep}model.py")

    assert f"{os.sep}model.py" in own_modules(Path(os.sep))


def test_runs_that_are_logged_into_the_repository_are_no_code_of_it(repository):
    (repository / "new.py").write_text("y = 2\n")
    logs = repository / "logs"
    logs.mkdir()
    keep(logs / "first")
    (logs / "first" / "metrics.jsonl").write_text("{}\n")
    (logs / "begun").mkdir()
    (logs / "begun" / "run.json").write_text("{}\n")
    again, _ = keep(logs / "first", session=2)
    other, _ = keep(logs / "second")
    (logs / "second" / "run.json").write_text("{}\n")
    elsewhere, _ = keep(repository / "run")

    for kept in (again, other, elsewhere):
        assert set(kept.files) == {"train.py", "lib/x.py", "new.py"}
        assert kept.left_out == {}
