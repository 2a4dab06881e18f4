"""Every series of every sample is what the tool's own reader says, and reading changes nothing."""

from __future__ import annotations

import json

import pytest

from tests.importers import samples
from tests.lengths import in_make_faults
from toolkit.telemetry.cli.main import main


def shown(root, name, telemetry):
    """Return what the command prints about a sample; text logs are named one by one, as they are never guessed."""
    if not name.startswith("text_logs/"):
        return json.loads(telemetry("show", root / name, "--json"))
    runs = []
    for run in samples.expected(root, name)["runs"]:
        path = root / name / run["file"]
        (found,) = json.loads(telemetry("show", path, "--format", "text", "--json"))["runs"]
        found["pieces"][0]["path"] = run["file"]
        runs.append(found)
    return {"runs": runs}


def compare(capsys, tmp_path, root, name):
    """Check that `telemetry show --json` says what the tool's own reader says; return how many series are equal."""

    def telemetry(*arguments):
        capsys.readouterr()
        code = main([*map(str, arguments)])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        assert arguments[-1] != "--json" or json.loads(printed.out, parse_constant=pytest.fail)
        return printed.out

    before = samples.fingerprint(root / name)
    content = samples.corrected(root, name)
    wrong, equal = samples.differences(name.split("/")[0], content, shown(root, name, telemetry))
    if name.startswith("aim/"):
        out = tmp_path / f"{name.replace('/', ' ')}.parquet"
        telemetry("export", root / name, "--to", "parquet", "--out", out)
        rows = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
        wrong += samples.differences_of_aim_keys(content, rows)
    assert samples.fingerprint(root / name) == before
    assert wrong == []
    return equal


@pytest.mark.parametrize("name", samples.names(samples.ours()))
def test_a_sample_is_read_as_its_own_reader_does(name, capsys, tmp_path):
    assert compare(capsys, tmp_path, samples.ours(), name)


@in_make_faults
@pytest.mark.skipif(
    not samples.OTHERS.is_dir(), reason="needs ../shared/foreign, logs from public repositories"
)
@pytest.mark.parametrize(
    "format_name", sorted({name.split("/")[0] for name in samples.names(samples.OTHERS)})
)
def test_logs_from_public_repositories_are_read_as_their_own_readers_do(
    format_name, capsys, tmp_path, record_property
):
    if format_name == "aim":
        pytest.importorskip("aim")
    equal = sum(
        compare(capsys, tmp_path, samples.OTHERS, name)
        for name in samples.names(samples.OTHERS)
        if name.startswith(f"{format_name}/")
    )
    record_property(f"series of {format_name} equal to the official reader", equal)
