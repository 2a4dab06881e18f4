"""Every series of every sample is what the tool's own reader says, and reading changes nothing."""

from __future__ import annotations

import json

import pytest

from tests.importers import samples
from tests.importers.agreement import compared
from tests.lengths import in_make_faults
from toolkit.telemetry.cli.main import main


def compare(capsys, root, name):
    def telemetry(*arguments):
        capsys.readouterr()
        code = main([*map(str, arguments)])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        assert arguments[-1] != "--json" or json.loads(printed.out, parse_constant=pytest.fail)
        return printed.out

    before = samples.fingerprint(root / name)
    wrong, equal = compared(root, name, telemetry)
    assert samples.fingerprint(root / name) == before
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
