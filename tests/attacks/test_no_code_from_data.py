"""Nothing that is read is ever run: by what our code may call, and by what happens when it is given code."""

from __future__ import annotations

import ast
import os
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.fork_server import run_python
from tests.lengths import in_make_faults
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.core.plugins import KINDS
from toolkit.telemetry.trainer.command import main as train

ROOT = Path(__file__).parents[2]
ROOMS = ("ai_toolkit_telemetry", "dashboard", "toolkit")
OURS = sorted([*(path for room in ROOMS for path in (ROOT / room).rglob("*.py")), *ROOT.glob("run*.py")])

BANNED_MODULES = {
    *("pickle", "cPickle", "_pickle", "marshal", "shelve", "joblib", "dill", "cloudpickle", "code"),
    "imp",
}
BANNED_NAMES = {"eval", "exec", "compile", "__import__"}
BANNED_CALLS = {
    "yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "yaml.unsafe_load_all", "yaml.full_load_all",
    "torch.load", "torch.hub.load", "np.load", "numpy.load", "pd.read_pickle", "pandas.read_pickle", "pd.eval",
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "tarfile.open",
    "shutil.unpack_archive", "importlib.metadata.entry_points", "entry_points", "pkg_resources.iter_entry_points",
    "runpy.run_path", "tempfile.mktemp", "zipfile.ZipFile.extractall",
}  # fmt: skip
ENGINE_QUERIES = {
    "engine.query",
    "self._engine.query",
    "self.query",
    "anywhere.query",
    "source.query",
    "one.query",
    "answer.query",
}
"""SQL for the engine of a fleet or for DuckDB, not an expression for pandas."""
BANNED_METHODS = {"extractall", "read_pickle", "to_pickle", "query", "iter_entry_points", "unsafe_load"}


def test_no_module_of_ours_can_run_what_it_reads(record_property):
    found, calls = [], 0
    for path in OURS:
        where = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            calls += isinstance(node, ast.Call)
            found += [f"{where}:{node.lineno}: {what}" for what in banned(node)]

    # The script that `ai_toolkit_telemetry.run` is asked to run, a constant at the exit, plug-ins (docs/plugins.md),
    # and the name of the error of `torch.load(weights_only=True)`.
    asked_for = [
        *("ai_toolkit_telemetry/run.py", "toolkit/telemetry/core/lifetime.py"),
        *("toolkit/telemetry/core/plugins.py", "toolkit/telemetry/trainer/checkpoint.py"),
    ]
    assert [line.split(":")[0] for line in found] == asked_for
    record_property("measured", f"{len(OURS)} modules, {calls:,} calls, 0 that run data")


def test_each_way_to_run_data_would_be_found():
    harm = """
        import pickle, marshal as m
        from joblib import load
        eval("1"); exec("1"); yaml.load(x); yaml.load(x, Loader=yaml.Loader); torch.load(p); df.query("a > 1")
        subprocess.run("ls", shell=True); np.load(p, allow_pickle=True); archive.extractall(); os.system("x")
        importlib.metadata.entry_points(group="x"); st.cache_data(persist="disk")
        tempfile.mktemp()
    """
    found = [what for node in ast.walk(ast.parse(textwrap.dedent(harm))) for what in banned(node)]

    assert len(found) == 17


@in_make_faults
def test_no_plug_in_is_loaded_because_it_is_installed(tmp_path):
    """A package under another group than those of plug-ins, or without permission, is not even imported."""
    site = tmp_path / "site"
    info = site / "evil-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    groups = (
        "toolkit",
        "telemetry",
        "toolkit.telemetry",
        "toolkit.exporters",
        "ai_toolkit_telemetry",
        "dashboard",
        *(f"telemetry.{kind}" for kind in KINDS),
    )
    (info / "entry_points.txt").write_text("".join(f"[{group}]\nevil = evil:run\n" for group in groups))
    (site / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\ndef run(*a): pass\n")
    script = """
        import sys
        from toolkit.telemetry import TelemetryLogger
        from toolkit.telemetry.cli.main import main
from toolkit.telemetry.trainer.command import main as train
        import toolkit.telemetry.runs.sources.local_store
        with TelemetryLogger("r", log_dir=sys.argv[1], system=False) as log:
            log.log_step(1, train_loss=1.0)
        main(["doctor", str(log.run_folder)])
        from importlib.metadata import entry_points
        print("seen", len(entry_points(group="telemetry")), "evil" in sys.modules)
    """
    done = run_python(
        ["-c", textwrap.dedent(script), tmp_path / "logs"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{site}", "TELEMETRY_PLUGINS": "off"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "seen 1 False" in done.stdout, done.stderr
    assert not (tmp_path / "executed").exists()
    assert [*entry_points(group="telemetry"), *entry_points(group="toolkit")] == []


YAMLS = (
    "!!python/object/apply:os.system ['touch {mark}']",
    "config: !!python/object/apply:os.system ['touch {mark}']\ntelemetry: {{}}",
    "telemetry: !!python/object/new:os.system ['touch {mark}']",
    "telemetry:\n  log_dir: !!python/object/apply:subprocess.check_output [['touch', '{mark}']]",
    *("a: !!python/name:os.system\ntelemetry: {{}}", "a: !!python/module:os\n"),
    "job: extension\nconfig: {{name: '$(touch {mark})', process: [{{type: '`touch {mark}`'}}]}}",
)


@pytest.mark.parametrize(
    ("program", "command"), [(main, ["setup", "usage"]), (main, ["setup", "message", "--show"]), (train, [])]
)
def test_a_yaml_that_would_run_something_is_only_refused(tmp_path, monkeypatch, capsys, program, command):
    mark = tmp_path / "executed"
    monkeypatch.chdir(tmp_path)
    codes = []
    for number, text in enumerate(YAMLS):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text.format(mark=mark))
        codes.append(program([*command, str(path)]))
    capsys.readouterr()

    assert not mark.exists()
    assert all(code not in (0, None) for code in codes[:6]), codes


def test_a_yaml_that_grows_when_it_is_unfolded_ends_in_time(tmp_path, capsys):
    """Ten levels of ten aliases each: ten thousand million values for whoever writes them all out."""
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 10):
        levels.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]")
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join([*levels, "telemetry: {}", "config: {name: x}"]))
    script = "import sys; from toolkit.telemetry.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for arguments in (["setup", "usage"], ["setup", "message", "--show"]):
        done = run_python(
            ["-c", script, *arguments, path],
            capture_output=True,
            timeout=200,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert done.returncode in (0, 1, 2), done.stderr[-500:]
        assert b"Traceback" not in done.stderr


def banned(node: ast.AST) -> list[str]:
    """Return the names by which `node` would run data, or make that possible."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.split(".")[0] in BANNED_MODULES]
    if isinstance(node, ast.ImportFrom):
        is_banned = (node.module or "").split(".")[0] in BANNED_MODULES
        # The name of an exception runs nothing.
        return [node.module or ""] if is_banned and node.names[0].name != "UnpicklingError" else []
    if not isinstance(node, ast.Call):
        return []
    name = dotted(node.func)
    given = {
        keyword.arg: repr(keyword.value.value)
        for keyword in node.keywords
        if isinstance(keyword.value, ast.Constant)
    }
    found = []
    if name in BANNED_NAMES or name in BANNED_CALLS:
        found.append(name)
    elif isinstance(node.func, ast.Attribute) and node.func.attr in BANNED_METHODS:
        # The query of a table is given a text; that of a CUDA event is given nothing, and that of an engine is SQL.
        is_harmless = node.func.attr == "query" and (not node.args or name in ENGINE_QUERIES)
        found += [] if is_harmless else [name]
    if name == "torch.load" and given.get("weights_only") == "True":
        found = []
    found += [f"{key}={value}" for key, value in given.items() if (key, value) in BANNED_ARGUMENTS]
    return found


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` of a plain name, and what is known of any other."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


BANNED_ARGUMENTS = {("shell", "True"), ("allow_pickle", "True"), ("persist", "'disk'"), ("persist", "True")}
