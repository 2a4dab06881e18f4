"""Far too many runs, files, links and ranks: what is shown is bounded, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from tests.attacks.entry_points import look_at_all
from tests.attacks.hostile_folders import an_ordinary_run
from tests.lengths import in_make_faults, longer
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runs.sources.local_store import LocalStore

ROOT = Path(__file__).parents[2]


@in_make_faults
def test_a_million_files_next_to_the_runs_hide_none_and_the_listing_is_bounded(tmp_path, record_property):
    runs, files, links = longer(1_500, 100_000), longer(3_000, 1_000_000), longer(500, 50_000)
    empty = longer(500, 100_000)
    root = tmp_path / "logs"
    an_ordinary_run(root, "good")
    for number in range(runs):
        folder = root / f"r{number}"
        folder.mkdir()
        (folder / METRICS_JSONL).touch()
    for number in range(files):
        (root / f"f{number}").touch()
    for number in range(empty):
        (root / f"e{number}").mkdir()
    for number in range(links):
        (root / f"l{number}").symlink_to("good")
    script = """
        import sys, time
        from pathlib import Path
        from toolkit.telemetry.runs.sources.local_store import LocalStore
        from tests.attacks.entry_points import peak_mb
        from toolkit.telemetry.cli.main import main
        store = LocalStore([Path(sys.argv[1])], cache_dir=None)
        began = time.perf_counter()
        found = store.list_runs()
        took = time.perf_counter() - began
        store.list_runs()
        assert store.card("r0").key == "r0"
        assert len(found.problems) <= 30, len(found.problems)
        assert all(len(problem) < 500 for problem in found.problems)
        main(["show", sys.argv[1]])
        peak = peak_mb()
        print(f"RESULT {len(found.cards)} {took:.2f} {peak:.0f}")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), root],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=longer(200, 3000),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (result,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    shown, took, peak = result.split()[1:]

    assert int(shown) == min(runs + 1, 20_000)
    assert float(peak) < 1500
    record_property(
        "measured",
        f"{runs:,} runs, {empty:,} empty folders, {files:,} files, {links:,} links: "
        f"{shown} listed in {took} s, {peak} MB",
    )


@in_make_faults
def test_a_run_of_very_many_ranks_samples_and_sessions_is_read_in_bounded_time(tmp_path, record_property):
    count = longer(400, 20_000)
    root = tmp_path / "logs"
    folder = an_ordinary_run(root, "wide")
    line = (folder / "ranks" / "00001.jsonl").read_bytes().split(b"\n")[0] + b"\n"
    for number in range(2, count):
        (folder / "ranks" / f"{number:05d}.jsonl").write_bytes(line)
        (folder / "samples" / f"{number}.png").touch()
    report = look_at_all(root, room=tmp_path / "room", limit_s=longer(60.0, 600.0))

    assert report.broken == {}
    slowest, took_s = report.slowest
    which = slowest.partition(":")[0]
    record_property("measured", f"{count:,} ranks: slowest {which} {took_s:.1f} s, {report.peak_mb:.0f} MB")


def test_pages_that_ask_all_the_time_do_not_have_the_folder_listed_all_the_time(tmp_path, monkeypatch):
    """A storm of refreshes, as of many open tabs."""
    root = tmp_path / "logs"
    an_ordinary_run(root, "good")
    store = LocalStore([root], cache_dir=None)
    listed = []
    scan = store._folders._listings[0].scan
    monkeypatch.setattr(
        store._folders._listings[0], "scan", lambda: listed.append(time.monotonic()) or scan()
    )
    began = time.monotonic()
    asked = 0
    # By number as well: a machine that pauses for the whole second has asked next to nothing by then.
    while time.monotonic() - began < 1.0 or asked < 200:
        store.list_runs()
        store.card("good")
        asked += 2

    assert len(listed) <= asked / 5
