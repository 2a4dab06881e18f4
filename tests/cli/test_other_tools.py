"""`ls`, `compare`, `tail` and `gc` on logs that other tools wrote: every run is listed, and nothing is changed."""

from __future__ import annotations

import json

from tests.importers.samples import fingerprint, ours
from toolkit.cli.main import main
from toolkit.importers.detect import find_sources


def test_every_run_of_every_tool_is_listed_and_no_file_is_changed(capsys, monkeypatch):
    samples = ours()
    before = fingerprint(samples)

    assert main(["ls", str(samples), "--json", "--deleted"]) == 0
    listed = json.loads(capsys.readouterr().out)["runs"]
    assert len(listed) == len(find_sources(samples).runs)
    assert all(run["status"] != "unreadable" for run in listed), listed
    assert [run for run in listed if run["step"] is not None and run["loss"] is not None]

    assert main(["compare", str(samples), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == min(
        50, len(listed) - sum(r["deleted"] for r in listed)
    )
    for place in sorted(path for path in samples.iterdir() if path.is_dir()):
        capsys.readouterr()
        code = main(["tail", str(place), "-n", "3", "--json"])
        out, err = capsys.readouterr()
        assert (code == 0 and all(map(json.loads, out.splitlines()))) or (code == 2 and " runs (" in err), (
            place,
            err,
        )
    monkeypatch.setattr("toolkit.cli.leftovers.shared_memory_folders", list)
    assert main(["gc", str(samples), "--yes", "--keep-cache", "--older-than", "5200w"]) == 0

    assert fingerprint(samples) == before
