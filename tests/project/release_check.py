"""Builds the packages and tries them as people install them: new environments, outside of a checkout.

`make release-check` runs it. It needs PyPI, and a few minutes for each Python.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600
STEPS = 20

OWN_LOOP = f"""
from toolkit.telemetry import TelemetryLogger
with TelemetryLogger("own_loop", log_dir="logs") as log:
    for step in range(1, {STEPS} + 1):
        log.log_step(step, train_loss=1 / step)
"""

IMPORTS = """
import ai_toolkit_telemetry.dashboard.launcher, toolkit.telemetry
from toolkit.telemetry.cli.main import SUBCOMMANDS, parser_of
for name in SUBCOMMANDS:
    parser_of(name)
"""

# Runs in the new environment, which has Streamlit and websockets: a session like that of a browser.
OPEN_PAGE = """
import sys
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect
address, page, run = sys.argv[1:]
with connect(f"ws://{address}/_stcore/stream", origin=f"http://{address}", subprotocols=["streamlit"],
             max_size=None) as socket:
    request = BackMsg()
    request.rerun_script.page_name = page
    request.rerun_script.query_string = f"run={run}"
    socket.send(request.SerializeToString())
    texts = b""
    while True:
        data = socket.recv(timeout=300)
        texts += data
        message = ForwardMsg()
        message.ParseFromString(data)
        # A page that learns something new meanwhile ends early and runs again.
        if message.WhichOneof("type") == "script_finished" and (
            message.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN
        ):
            break
assert message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY, message
assert b"exception" not in texts.lower(), texts
assert run.encode() in texts, texts
"""


class FailedError(Exception):
    """A check failed; the message has what was run and what it printed."""


class Environment:
    """A new virtual environment with the wheel in it."""

    def __init__(self, python, version, folder, wheel, *, torch):
        self.version = version
        self.has_torch = torch is not None
        self._folder = folder / f"python{version}"
        self._bin = self._folder / "venv" / "bin"
        shutil.rmtree(self._folder, ignore_errors=True)
        run([python, "-m", "venv", self._folder / "venv"])
        extras = "dashboard,training" if torch else "dashboard"
        pip = (self._bin / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run([*pip, f"{wheel}[{extras}]", *([torch] if torch else [])])

    def checks(self):
        """Try it; yield the name of each check once it has passed."""
        work = self._folder / "work"
        work.mkdir()
        # The example is in the source distribution, not in the wheel.
        train = (ROOT / "run.py", "--steps", STEPS) if self.has_torch else ("-c", OWN_LOOP)
        self._run(work, "python", *train)
        name = "tiny_neon_lora" if self.has_torch else "own_loop"
        yield f"train {STEPS} steps" if self.has_torch else f"log {STEPS} steps"
        self._commands(work, name)
        yield "commands"
        self._page(work, name)
        yield "page"
        self._run(work, "python", "-c", IMPORTS)
        for module in ("toolkit.telemetry", "ai_toolkit_telemetry", "ai_toolkit_telemetry.dashboard"):
            self._run(work, "python", "-m", module, "--help")
        yield "python -m, imports"

    def _commands(self, folder, name):
        listed = json.loads(self._run(folder, "telemetry", "ls", "--json"))
        assert name in json.dumps(listed), listed
        json.loads(self._run(folder, "telemetry", "show", f"logs/{name}", "--json"))
        json.loads(self._run(folder, "telemetry", "doctor", f"logs/{name}", "--json"))

    def _page(self, folder, name):
        """Start the server, get its page by HTTP, and draw two pages in a session."""
        printed = self._folder / "dashboard.txt"
        command = (self._bin / "telemetry", "dashboard", "--port", "0", "--no-browser", "--log-dir", "logs")
        with printed.open("wb") as out:
            server = subprocess.Popen(
                list(map(str, command)),
                cwd=folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            address = _address(server, printed)
            with urllib.request.urlopen(f"http://{address}/", timeout=PATIENCE_S) as answer:
                assert answer.status == 200
                assert b"<html" in answer.read()
            for page in ("", "overview"):
                self._run(folder, "python", "-c", OPEN_PAGE, address, page, name)
        finally:
            server.terminate()
            code = server.wait(PATIENCE_S)
        if code != 0:
            raise FailedError(f"{command} ended with {code}: {printed.read_text()}")

    def _run(self, folder, program, *arguments):
        return run([self._bin / program, *arguments], cwd=folder)


def _address(server, printed):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        said = printed.read_text(encoding="utf-8", errors="replace")
        found = re.search(r"Dashboard: http://(\S+?:\d+)", said)
        if found is not None:
            return found[1]
        if server.poll() is not None:
            break
        time.sleep(0.1)
    raise FailedError(f"the dashboard did not start: {said}")


def environment(more=None):
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TELEMETRY_"))
    }
    return {**kept, **(more or {})}


def run(command, *, cwd=None):
    """Run `command` and return what it printed. Raises FailedError unless it exits with 0."""
    command = list(map(str, command))
    finished = subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=3 * PATIENCE_S
    )
    if finished.returncode != 0:
        said = f"{finished.stdout[-4000:]}{finished.stderr[-4000:]}"
        raise FailedError(f"{' '.join(command)} ended with {finished.returncode}:\n{said}")
    return finished.stdout


def python_of(version):
    """Return the path of a Python of this version, None if there is none."""
    on_path = shutil.which(f"python{version}")
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for python in [sys.executable, *([on_path] if on_path else []), *installed]:
        asked = subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment())
        if asked.stdout.strip() == version:
            return python
    return None


def tracked_files():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def built(folder):
    """Build the source distribution from the tracked files and the wheel from that; check both; return the wheel."""
    source, dist, tools = folder / "source", folder / "dist", folder / "tools"
    for old in (source, dist):
        shutil.rmtree(old, ignore_errors=True)
    files = tracked_files()
    for name in files:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    python = tools / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", tools])
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "build", "twine"])
    run([python, "-m", "build", "--outdir", dist, source])
    [wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    run([python, "-m", "twine", "check", "--strict", wheel, sdist])
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in files if name not in inside and name != ".gitignore"]
    if missing:
        raise FailedError(f"not in {sdist.name}: {', '.join(missing)}")
    return wheel


def pinned_torch():
    text = (ROOT / "requirements" / "constraints.txt").read_text(encoding="utf-8")
    return re.search(r"^torch==\S+", text, re.MULTILINE)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pythons", default="3.10 3.11 3.12 3.13", help="versions to install the wheel on")
    parser.add_argument("--torch-on", default="3.11", help="versions to install torch on, and to train with")
    chosen = parser.parse_args()
    folder = ROOT / "build" / "release"
    # Outside of the checkout, or its files would be found before the installed ones.
    with tempfile.TemporaryDirectory(prefix="telemetry-release-") as outside:
        wheel = built(folder)
        print(f"{wheel.name}: built from the source distribution, and accepted by twine", flush=True)
        rows, failed = [], False
        for version in chosen.pythons.split():
            torch = pinned_torch() if version in chosen.torch_on.split() else None
            python, passed, problem = python_of(version), [], ""
            if python is None:
                problem = "NOT CHECKED: no such Python here; PYTHONS= leaves it out"
            else:
                print(f"Python {version} ({python})", flush=True)
                try:
                    for check in Environment(python, version, Path(outside), wheel, torch=torch).checks():
                        print(f"  {check}", flush=True)
                        passed.append(check)
                except (FailedError, AssertionError, ValueError, subprocess.TimeoutExpired) as error:
                    print(error, file=sys.stderr)
                    problem = "FAILED, see above"
                if torch is None and not problem:
                    problem = "the example was not trained: no torch here (TORCH_ON=)"
                shutil.rmtree(Path(outside) / f"python{version}", ignore_errors=True)
            failed = failed or "NOT" in problem or "FAILED" in problem
            rows.append((version, ", ".join(["installed", *passed] if passed else []) or "-", problem or "-"))
    print(f"\n{table([('Python', 'passed', 'note'), *rows])}")
    return 1 if failed else 0


def table(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


if __name__ == "__main__":
    raise SystemExit(main())
