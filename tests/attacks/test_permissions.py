"""Only the owner can read our files, whatever the umask; and no one can create them in advance."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.lengths import in_make_faults
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.compat import wandb

posix = pytest.mark.skipif(os.name != "posix", reason="modes of this kind are POSIX's")
pytestmark = posix
ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("programs")

UMASKS = ("000", "022", "077")


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """What we make, made under each umask, with each call that made a file where strace can tell."""
    place = tmp_path_factory.mktemp("made")
    calls = place / "calls"
    tracing = ["strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=openat,open,creat", "-o", calls]
    command = [sys.executable, PROGRAMS / "make_every_file.py", place, *UMASKS]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    can_trace = (
        shutil.which("strace") is not None
        and not subprocess.run([*tracing, "true"], capture_output=True, check=False).returncode
    )
    done = subprocess.run(
        [*(tracing if can_trace else []), *command], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return place, calls.read_text(errors="replace").splitlines() if can_trace else None


@in_make_faults
def test_only_the_owner_can_read_configuration_whatever_the_umask(everything, record_property):
    """Run folder, records, table, manifest, request, labels, journal, mirrors, bundle, trace, cache and trash."""
    place, _ = everything
    count = 0
    for umask in UMASKS:
        made = json.loads((place / umask / "made.json").read_text())
        count += len(made)
        # The folders on the way hold names of runs and nothing else.
        on_the_way = {"deep", "deep/logs", "cache", "exported"}

        assert {
            name: oct(mode) for name, mode in made.items() if name not in on_the_way and mode & 0o077
        } == {}
        for place_of_runs in ("deep", "deep/logs", "exported"):
            assert not made[place_of_runs] & 0o002, "anybody could put a run there"
        for kind in ("metrics.jsonl", "metrics.csv", "run.json", "control.json", "labels.json", "journal",
                     "shared.zip", "trace.json", ".arrow", "one_logger.jsonl", "tensorboard/",
                     "tables/", "exported/", "media/"):  # fmt: skip
            assert any(kind in name for name in made), kind
    record_property("measured", f"{count} files and folders under {len(UMASKS)} umasks, 0 for others")


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_media_and_exports_are_the_owners_alone(tmp_path, umask):
    before = os.umask(umask)
    try:
        run = wandb.init(dir=tmp_path, name="w", mode="offline", telemetry={"system": False, "csv": False})
        run.log({"loss": 1.0, "deep/er": wandb.Html("text")})
        wandb.finish()
        folder = run.telemetry.run_folder
        out = tmp_path / "on the way" / "exported"
        assert main(["export", str(folder), "--to", "tensorboard", "--out", str(out)]) == 0
    finally:
        os.umask(before)
    made = [*(folder / "media").rglob("*"), out, *out.rglob("*")]

    assert any(path.suffix == ".html" for path in made)
    assert {path: oct(path.stat().st_mode) for path in made if path.stat().st_mode & 0o077} == {}
    assert not out.parent.stat().st_mode & 0o002


def test_a_folder_that_cannot_pass_its_group_on_is_shared_all_the_same(tmp_path, monkeypatch):
    def refuse(path, mode):
        raise PermissionError(1, "Operation not permitted", path)

    # As under systemd's RestrictSUIDSGID.
    monkeypatch.setattr(os, "chmod", refuse)
    with TelemetryLogger("r", log_dir=tmp_path, system=False, share="group") as log:
        log.log_step(1, train_loss=1.0)

    assert "train_loss" in (log.run_folder / "metrics.jsonl").read_text()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can choose another group")
@pytest.mark.parametrize(
    ("variable", "share", "folder", "file"),
    [
        ("", "group", 0o2750, 0o640),
        ("group", None, 0o2750, 0o640),
        ("1", None, 0o755, 0o644),
        ("group", False, 0o700, 0o600),
        ("", None, 0o700, 0o600),
    ],
)
def test_a_run_is_shared_with_whom_the_option_or_the_machine_says(
    tmp_path, monkeypatch, request, variable, share, folder, file
):
    request.addfinalizer(partial(os.umask, os.umask(0o022)))
    monkeypatch.setenv("TELEMETRY_SHARE", variable)
    os.chown(tmp_path, -1, 12345)
    with TelemetryLogger("r", log_dir=tmp_path, system=False, share=share) as log:
        log.log_step(1, train_loss=1.0)
        log.log_table("t", [{"a": 1}], step=1)
    made = [log.run_folder, *log.run_folder.rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in made}

    assert {modes[path] for path in made if path.is_dir()} == {folder}
    assert {modes[path] for path in made if path.is_file()} == {file}
    assert {path.stat().st_gid for path in made} == {12345 if folder == 0o2750 else os.getegid()}


@in_make_faults
def test_no_file_name_can_be_taken_in_advance(everything, record_property):
    """Each is made exclusively, or follows no link in a folder that is ours alone."""
    place, calls = everything
    if calls is None:
        pytest.skip("there is no strace that may see each file being made")
    made = [line for line in calls if "O_CREAT" in line and " = -1" not in line and "made.json" not in line]
    # An export is made in a new folder with a random name.
    new_folder = re.compile(r"\.\w+\.[0-9a-f]{12}\.export/|\.share-\w{8}/")
    own_run = re.compile(rf'"{re.escape(str(place))}/[0-9]+/deep/logs/[rw]/')
    by_name = [line for line in made if "O_EXCL" not in line and not new_folder.search(line)]
    open_to_others = [line for line in by_name if not own_run.search(line)]
    following = [line for line in by_name if "O_NOFOLLOW" not in line]

    assert len(made) > 30
    assert open_to_others == []
    assert following == []
    record_property("measured", f"{len(made)} files made, 0 by a name that could be taken first")


def test_an_export_does_not_write_through_a_planted_link(tmp_path, monkeypatch):
    """In a folder where others may write, such as /tmp, another user creates the file first."""
    from tests.attacks.hostile_folders import an_ordinary_run

    run = an_ordinary_run(tmp_path / "logs", "r")
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    place = tmp_path / "shared"
    place.mkdir()
    monkeypatch.chdir(place)
    for name in ("r-trace.json", f".r-trace.json.{os.getpid()}.tmp", "shared-run.zip"):
        (place / name).symlink_to(victim)

    for form in ("trace", "zip"):
        for more in ([], ["--force"]):
            assert main(["export", "--to", form, str(run), *more]) == 2, (
                "the name is taken, and is not written over"
            )
    assert victim.read_text() == "untouched"
