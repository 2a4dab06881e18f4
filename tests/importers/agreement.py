"""Print, for every sample, whether `telemetry show --json` says what the tool's own reader says.

python -m tests.importers.agreement [FOLDER]

FOLDER is ../shared/foreign unless named. Each sample is read by the command itself, in a process of its own. Samples of
Aim need Aim installed. Exit code: 1 if one differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.importers import samples


def telemetry(*arguments):
    command = [sys.executable, "-m", "toolkit.telemetry.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    return done.stdout


def shown(root, name, command=telemetry):
    """Return what the command prints about a sample; text logs are named one by one, as they are never guessed."""
    if not name.startswith("text_logs/"):
        return json.loads(command("show", root / name, "--json"))
    runs = []
    for run in samples.expected(root, name)["runs"]:
        path = root / name / run["file"]
        (found,) = json.loads(command("show", path, "--format", "text", "--json"))["runs"]
        found["pieces"][0]["path"] = run["file"]
        runs.append(found)
    return {"runs": runs}


def compared(root, name, command=telemetry):
    """Return what differs in a sample, as texts; and how many series are equal."""
    content = samples.corrected(root, name)
    wrong, equal = samples.differences(name.split("/")[0], content, shown(root, name, command))
    if name.startswith("aim/"):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "points.jsonl"
            command("export", root / name, "--to", "jsonl", "--out", out)
            wrong += samples.differences_of_aim_keys(content, [*map(json.loads, out.open(encoding="utf-8"))])
    return wrong, equal


def main(arguments):
    root = Path(arguments[0]) if arguments else samples.OTHERS
    agreeing = series = 0
    names = samples.names(root)
    if not names:
        print(f"there are no samples in {root}")
        return 1
    for name in names:
        before = samples.fingerprint(root / name)
        try:
            wrong, equal = compared(root, name)
        except (RuntimeError, ModuleNotFoundError) as error:
            wrong, equal = [str(error)], 0
        if samples.fingerprint(root / name) != before:
            wrong.append("its folder was changed")
        agreeing += not wrong
        series += equal
        why = samples.CORRECTED.get(name, "")
        print(
            f"{name:45} {'differs' if wrong else 'agrees':8} {equal:5,} series{f'  ({why})' if why else ''}",
            flush=True,
        )
        for text in wrong[:5]:
            print(f"    {text}")
    print(f"{agreeing} of {len(names)} samples agree, {series:,} series")
    return int(agreeing < len(names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
