"""Names that lead elsewhere: of runs, in addresses of pages, in records, in archives."""

from __future__ import annotations

import os
import sys
import zipfile

import pytest

from tests.attacks.entry_points import NAMES_THAT_LEAD_OUT
from tests.attacks.hostile_folders import SECRET, an_ordinary_run, as_line, outside
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.store import Refused, UnknownRun

WAYS_OUT = (
    *(name for name in NAMES_THAT_LEAD_OUT if name),
    "../" * 40 + "etc/passwd",
    "....//....//x",
    "%2e%2e%2fx",
    "\uff0e\uff0e\uff0fx",
    "a\u2215..\u2215b",
    "NUL",
    "com1.txt",
    "LPT9",
    "aux ",
    "trailing.",
    "trailing ",
    ".hidden",
    "-rf",
    "$(touch x)",
    "`id`",
    "a\nb",
    "a:stream",
    "\\\\?\\C:\\x",
    "\\\\.\\pipe\\x",
    "CONIN$",
    "\u202etxt.exe",
)


def everything_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_no_run_name_makes_a_folder_outside_the_log_directory(tmp_path, record_property):
    log_dir = tmp_path / "a" / "b" / "logs"
    for name in WAYS_OUT:
        with TelemetryLogger(name, log_dir=log_dir, system=False, csv=False) as log:
            log.log_step(1, train_loss=1.0)
        assert log.run_folder.parent == log_dir
        assert (log.run_folder / "metrics.jsonl").is_file()

    assert {name.partition(os.sep)[0] for name in everything_below(tmp_path)} == {"a"}
    assert set(os.listdir(tmp_path / "a" / "b")) == {"logs"}
    record_property("measured", f"{len(WAYS_OUT)} names, 0 folders outside")


def test_no_run_in_an_address_and_no_path_in_a_record_leads_out(tmp_path, record_property):
    outside(tmp_path)
    root = tmp_path / "logs"
    an_ordinary_run(root, "good")
    store = LocalStore([root], cache_dir=None)
    tried = 0
    for name in WAYS_OUT:
        for key in (name, f"good/{name}", f"good/../{name}", f"../outside/{name}", f"2~{name}"):
            for ask in (store.meta, store.refresh, store.delete, store.record_lines):
                with pytest.raises((UnknownRun, Refused)):
                    ask(key)
                tried += 1
        for path in (name, f"samples/{name}", f"../outside/{name}", f"samples/../../../outside/{name}"):
            try:
                data = store.read_file("good", path, max_bytes=10_000)
            except Refused:
                data = b""
            assert SECRET.encode() not in data
            assert data in (b"", b"\x89PNG\r\n\x1a\n")
            tried += 1

    assert set(os.listdir(root)) == {"good"}
    record_property("measured", f"{tried} addresses and paths, 0 led out")


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights of their own on Windows")
def test_a_linked_run_folder_is_neither_listed_nor_the_newest_nor_deleted_through(tmp_path, capsys):
    secret = an_ordinary_run(tmp_path / "elsewhere", "secret")
    with (secret / "metrics.jsonl").open("ab") as file:
        file.write(
            as_line({"event": "error", "seq": 90, "session": 1, "time": 9e9, "type": "E", "message": SECRET})
        )
    root = tmp_path / "logs"
    an_ordinary_run(root, "good")
    (root / "bait").symlink_to(secret)
    os.utime(root / "good" / "metrics.jsonl", (1, 1))
    for command in (
        ["show"],
        ["doctor"],
        ["time"],
        ["show", "--errors"],
        ["show", "--completions"],
        ["setup", "usage"],
    ):
        main([*command, str(root)])
    main(["export", "--to", "zip", "--preview", str(root)])
    main(["show", "--errors", "--json", str(root)])
    out, err = capsys.readouterr()
    store = LocalStore([root], cache_dir=None)

    assert SECRET not in out + err
    assert [card.key for card in store.list_runs().cards] == ["good"]
    with pytest.raises(UnknownRun):
        store.delete("bait")
    assert (secret / "run.json").exists()


def test_a_bundle_of_a_hostile_run_has_plain_names_and_no_links_in_it(tmp_path):
    """Run names and rank files that would be written elsewhere when the zip is unpacked."""
    outside(tmp_path)
    names = set()
    for number, name in enumerate(["../../../evil", "/etc/cron.d/x", "..\\..\\x", "C:\\x", "a\0b", "CON"]):
        folder = an_ordinary_run(tmp_path / f"logs{number}", "run", display_name=name)
        (folder / "notes.txt").symlink_to(tmp_path / "outside" / "0.png")
        (folder / "samples" / "1.png").symlink_to(tmp_path / "outside" / "0.png")
        (folder / "ranks" / "..00003.jsonl").write_bytes(as_line({"event": "step", "seq": 1}))
        assert main(["export", "--to", "zip", str(folder), "-o", str(tmp_path / f"{number}.zip")]) == 0
        with zipfile.ZipFile(tmp_path / f"{number}.zip") as archive:
            assert all(info.external_attr >> 28 in (0, 8) for info in archive.infolist()), "a link is in it"
            assert SECRET.encode() not in b"".join(archive.read(info) for info in archive.infolist())
            names |= {info.filename for info in archive.infolist()}

    assert names
    assert all(".." not in name.split("/") and "\\" not in name and ":" not in name for name in names)
    assert not any(name.startswith("/") or len(name.split("/")) > 3 for name in names)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse names that are not UTF-8")
def test_a_name_that_is_no_text_stops_no_command(tmp_path, capsys):
    logs = tmp_path / "logs"
    good = an_ordinary_run(logs, "good")
    ours, table = (os.fsdecode(os.fsencode(logs) + name) for name in (b"/run\xff", b"/table\xff.csv"))
    os.rename(an_ordinary_run(logs, "other"), ours)
    with open(table, "w") as file:
        file.write("step,loss\n1,2.0\n2,1.0\n")
    commands = [
        *(["ls", str(logs), *more] for more in ([], ["--json"])),
        ["compare", str(good), ours, table],
        *([name, ours] for name in ("doctor", "time", "tail", "repair")),
        ["show", ours, "--errors"],
        *(["export", ours, "--to", name, "-o", str(tmp_path / name)] for name in ("trace", "zip")),
        *(["show", run, "--json"] for run in (ours, table)),
        ["export", table, "--to", "run-folder", "--out", str(tmp_path / "folder")],
        *(
            ["export", run, "--to", to, "--out", str(tmp_path / f"{number}-{to}")]
            for to in ("csv", "parquet", "wandb", "tensorboard")
            for number, run in enumerate((ours, table, str(logs)))
        ),
    ]
    for command in commands:
        status = main(command)
        said = capsys.readouterr()
        assert status in (0, 1), (command, said.err)
        assert [word for word in ("Traceback", "could not be read") if word in said.err] == [], (
            command,
            said.err,
        )
