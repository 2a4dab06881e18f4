"""Malicious records through the reader, every command and every query of a page."""

from __future__ import annotations

import json
import pickle
import unicodedata

import pytest

from tests.attacks.entry_points import look_at_all
from tests.attacks.hostile_folders import EVENTS, LINES, an_ordinary_run, as_line, odd_records
from tests.lengths import is_long, longer
from tests.made_runs import step_record
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.reader import read_from

NASTY = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2066\x00\x7f\r"


PICKLED = ("metrics.csv", "run.json", "labels.json", "control.json", "samples/0.png")


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """Every entry point run once with every hostile record and file."""
    place = tmp_path_factory.mktemp("bytes")
    root, mark = place / "logs", place / "executed"
    lines = 0
    for event in EVENTS:
        folder = root / (event["event"] if is_long() else "odd")
        if not folder.exists():
            an_ordinary_run(root, folder.name)
        with (folder / "metrics.jsonl").open("ab") as file:
            for record in list(odd_records(event))[:: longer(120, 1)]:
                lines += file.write(as_line(record)) > 0
    folder = an_ordinary_run(root, "lines") if is_long() else root / "odd"
    with (folder / "metrics.jsonl").open("ab") as file:
        file.writelines(LINES)
    harm = pickle.dumps(_Harm(str(mark)))
    for number, names in enumerate(
        (("metrics.jsonl",), PICKLED, *([(name,) for name in PICKLED] if is_long() else []))
    ):
        folder = an_ordinary_run(root, f"pickled-{number}")
        for name in (*names, "data.pkl", "columns.arrow"):
            (folder / name).write_bytes(harm)
    (place / "room").mkdir()
    report = look_at_all(root, room=place / "room", limit_s=100.0)
    return report, lines + len(LINES), harm, mark


def test_no_hostile_record_breaks_an_entry_point_or_controls_a_terminal(walked, record_property):
    report, lines, _, _ = walked

    assert report.broken == {}
    assert commands_in(report.said) == set()
    record_property("measured", f"{lines:,} hostile records, {report.looked} reads, 0 broken")


def test_bytes_that_python_would_unpickle_are_only_bytes(walked):
    """Each file of a folder holds a pickle that would create a file if loaded."""
    _, _, harm, mark = walked

    assert not mark.exists()
    pickle.loads(harm)
    assert mark.exists(), "the attack does no harm, and the test proves nothing"


def test_no_hostile_manifest_labels_or_request_breaks_an_entry_point(tmp_path, record_property):
    root = tmp_path / "logs"
    good = an_ordinary_run(root, "good")
    manifest = {
        **json.loads((good / "run.json").read_text()),
        "control": {
            "log_every": {"low": 5, "high": 9},
            "actions": ["stop"],
            "knobs": {"lr": {"low": 0, "high": 1}},
        },
        "diagnostics": {"stall": "off"},
        "summary": {"global_step": 3, "train_loss": 0.4, "max_steps": 10},
        "tags": ["a"],
    }
    labels = {
        "display_name": "n",
        "tags": ["a"],
        "notes": "x",
        "archived": False,
        "muted": ["m"],
    }
    request = {
        "id": "i",
        "timestamp": 1.0,
        "expires": 2.0,
        "run_id": "r",
        "log_every": 7,
        "actions": ["a"],
        "knobs": {"k": 1},
    }
    made = 0
    for name, of, every in (
        ("run.json", manifest, 120),
        ("labels.json", labels, 80),
        ("control.json", request, 80),
    ):
        for number, record in enumerate(list(odd_records(of))[:: longer(every, 8)]):
            folder = an_ordinary_run(root, f"{name}-{number}")
            (folder / name).write_bytes(as_line(record))
            made += 1
    report = look_at_all(root, room=tmp_path / "room", limit_s=60.0, only="store" if not is_long() else "")
    for run in sorted(root.iterdir()):
        main(["doctor", str(run)])

    assert report.broken == {}
    record_property("measured", f"{made} hostile files, {report.looked} reads, 0 broken")


def test_terminal_escapes_in_a_run_name_are_printed_as_text(tmp_path, capfd):
    """Each text that a command prints: the folder's name, status, tags, events, errors, spans, completions."""
    root = tmp_path / "logs"
    name = "evil\x1b]0;owned\x07\x9b2J\u202e"
    folder = an_ordinary_run(root, name, display_name=NASTY, tags=[NASTY], project=NASTY)
    with (folder / "metrics.jsonl").open("ab") as file:
        for event in EVENTS:
            file.write(as_line(all_nasty(event)))
        file.write(as_line({"event": NASTY, "seq": 99, "session": 1, "time": 1.7e9, NASTY: NASTY}))
    manifest = json.loads((folder / "run.json").read_text())
    manifest["sessions"][-1].update(status=NASTY, reason=NASTY, perf_tag=NASTY)
    (folder / "run.json").write_text(json.dumps(manifest))
    main(["repair", str(folder)])
    for command in (
        *(
            ["show"],
            ["show", "--errors"],
            ["show", "--completions"],
            ["doctor"],
            ["time", "--spans"],
            ["status"],
        ),
        *(["export", "--to", "zip", "--preview"], ["setup", "usage"], ["setup", "message"]),
        ["export", "--to", "trace", "-o", str(tmp_path / NASTY[1:8])],
    ):
        main([*command, str(folder)])
        main([*command, str(tmp_path / f"missing{NASTY[:9]}")])
    out, err = capfd.readouterr()

    assert "evil" in out
    assert commands_in(out) == set()
    assert commands_in(err) == set()


def test_no_separator_of_any_alphabet_splits_a_record_or_joins_two(tmp_path):
    """Every character that `str.splitlines` cuts at, raw where JSON allows it and escaped where not."""
    separators = [chr(code) for code in range(0x3000) if len(f"a{chr(code)}b".splitlines()) > 1]
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        for number, separator in enumerate(separators):
            record = step_record(number, note=f"a{separator}b", **{f"k{separator}": 1.0})
            raw = json.dumps(record, ensure_ascii=ord(separator) < 0x20)
            file.write(raw.encode() + b"\n")
    chunk = read_from(path)

    assert len(separators) >= 9
    assert chunk.bad_count == 0
    assert [record["note"] for record in chunk.records] == [f"a{separator}b" for separator in separators]


class _Harm:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def all_nasty(value):
    """Return `value` with each text in it, but for the kind of record, made a command for the terminal."""
    if isinstance(value, dict):
        return {key: inner if key == "event" else all_nasty(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [all_nasty(inner) for inner in value]
    return f"{value}{NASTY}" if isinstance(value, str) else value


def commands_in(text):
    """Return the characters of `text` that a terminal would obey rather than show."""
    return {
        letter
        for letter in set(text) - {"\n", "\t"}
        if unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp")
    }
