"""Every series of every sample is what the tool's own reader says, and reading changes nothing."""

from __future__ import annotations

import json

import pytest

from tests.importers import samples
from tests.lengths import in_make_faults
from toolkit.cli.main import main

BETTER = {
    # Their names are in the write-ahead log of runs.swanlab, where the reader of the expected file did not look.
    "swanlab/local_2025": ("run-20250606_205134-a3b1799d",),
}


def show(capsys, *arguments):
    capsys.readouterr()
    code = main(["show", *map(str, arguments), "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return json.loads(printed.out, parse_constant=pytest.fail)


def shown(capsys, root, name):
    folder = root / name
    if not name.startswith("text_logs/"):
        return show(capsys, folder)
    runs = []
    for run in samples.expected(root, name)["runs"]:
        (found,) = show(capsys, folder / run["file"], "--format", "text")["runs"]
        found["pieces"][0]["path"] = run["file"]
        runs.append(found)
    return {"runs": runs}


def compare(capsys, root, name):
    before = samples.fingerprint(root / name)
    found = shown(capsys, root, name)
    assert samples.fingerprint(root / name) == before
    wrong, equal = samples.differences(name.split("/")[0], samples.expected(root, name), found)
    wrong = [text for text in wrong if not any(part in text for part in BETTER.get(name, ()))]
    assert wrong == []
    return equal


@pytest.mark.parametrize("name", samples.names(samples.ours()))
def test_a_sample_is_read_as_its_own_reader_does(name, capsys):
    assert compare(capsys, samples.ours(), name)


@in_make_faults
@pytest.mark.skipif(
    not samples.OTHERS.is_dir(), reason="needs ../shared/foreign, logs from public repositories"
)
@pytest.mark.parametrize(
    "format_name", sorted({name.split("/")[0] for name in samples.names(samples.OTHERS)})
)
def test_logs_from_public_repositories_are_read_as_their_own_readers_do(format_name, capsys, record_property):
    if format_name == "aim":
        pytest.importorskip("aim")
    equal = sum(
        compare(capsys, samples.OTHERS, name)
        for name in samples.names(samples.OTHERS)
        if name.startswith(f"{format_name}/")
    )
    record_property(f"series of {format_name} equal to the official reader", equal)
