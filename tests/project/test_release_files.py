"""The files around a release: valid by their schemas, and saying what pyproject.toml and the code say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import jsonschema
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema

from tests.cli.runs import write_run
from tests.lengths import in_make_faults
from tests.project.lock_file import LOCK_FILE
from tests.project.markdown import ROOT
from tests.project.sbom import sbom
from tests.project.test_packaging import PROJECT, names_in

ACTION = ROOT / ".github/actions/doctor/action.yml"
SCHEMAS = {
    "CITATION.cff": "citation-file-format",
    ".github/ISSUE_TEMPLATE/bug.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/request.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    ".github/actions/doctor/action.yml": "github-actions",
    ".github/workflows/publish.yml": "github-workflows",
}


def in_yaml(path):
    return yaml.load((ROOT / path).read_text("utf-8"), Loader=yaml.BaseLoader)


@pytest.mark.parametrize("path", SCHEMAS)
def test_a_file_for_github_and_the_citation_fit_their_schemas(path):
    schema = get_builtin_schema(f"vendor.{SCHEMAS[path]}")
    content = yaml.safe_load((ROOT / path).read_text("utf-8"))
    # YAML 1.1 reads the key `on` as true.
    content = {("on" if key is True else key): value for key, value in content.items()}

    assert next(jsonschema.validators.validator_for(schema)(schema).iter_errors(content), None) is None


def test_the_recipe_and_the_citation_say_what_pyproject_says():
    project, recipe = PROJECT["project"], in_yaml("conda/recipe.yaml")
    requires = recipe["requirements"]

    assert recipe["context"]["version"] == in_yaml("CITATION.cff")["version"] == project["version"]
    assert recipe["package"]["name"] == in_yaml("CITATION.cff")["title"] == project["name"]
    assert in_yaml("CITATION.cff")["authors"] == project["authors"]
    assert recipe["about"]["license"] == in_yaml("CITATION.cff")["license"] == project["license"]
    assert {name.replace(" ", "").lower() for name in requires["run"]} == {
        f"python{project['requires-python']}",
        *(name.lower() for name in project["dependencies"]),
    }
    assert [name.replace(" ", "") for name in requires["host"][2:]] == PROJECT["build-system"]["requires"]
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {target}" for name, target in project["scripts"].items()
    ]


def test_no_file_names_a_place_of_the_project_which_has_none():
    for path in (*SCHEMAS, "SECURITY.md", "llms.txt", "conda/recipe.yaml", ".devcontainer/devcontainer.json"):
        text = (ROOT / path).read_text("utf-8")
        assert not re.search(r"https?://|\w@\w[\w-]*\.\w", text), (
            f"{path}: pyproject.toml has no address to check it by"
        )


def test_the_links_of_llms_txt_exist():
    text = (ROOT / "llms.txt").read_text("utf-8")
    targets = re.findall(r"\]\(([^)]+)\)", text)

    assert text.startswith("# ai-toolkit-telemetry\n\n> ")
    assert len(targets) > 15
    assert [target for target in targets if not (ROOT / target).is_file()] == []


def test_a_commit_is_checked_by_what_make_installs():
    [local] = in_yaml(".pre-commit-config.yaml")["repos"]
    dev = names_in((ROOT / "requirements/dev.txt").read_text("utf-8").splitlines())
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text("utf-8"))

    assert local["repo"] == "local"
    programs = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in local["hooks"]}
    assert {"lint-imports": "import-linter", "ruff": "ruff", "python": "pytest"}.keys() == programs
    assert {"import-linter", "ruff", "pytest"} <= dev
    assert re.search(
        rf"^{container['postCreateCommand'].split()[1]}:",
        (ROOT / "Makefile").read_text("utf-8"),
        re.MULTILINE,
    )


def test_publishing_needs_no_token_and_attests_what_it_uploads():
    jobs = in_yaml(".github/workflows/publish.yml")["jobs"]
    used = [step["uses"].split("@")[0] for job in jobs.values() for step in job["steps"] if "uses" in step]

    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert {"actions/attest-build-provenance", "actions/attest-sbom", "pypa/gh-action-pypi-publish"} <= set(
        used
    )
    assert "secrets." not in (ROOT / ".github/workflows/publish.yml").read_text("utf-8")


def test_what_others_wrote_is_pinned_by_hash_where_a_release_is_made():
    text = (ROOT / ".github/workflows/publish.yml").read_text("utf-8")
    installed = (ROOT / "requirements/publish.txt").read_text("utf-8")

    for path in (ROOT / ".github").rglob("*.yml"):
        for action, version in re.findall(r"uses: (\S+)(.*)", path.read_text("utf-8")):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action), (path, action)
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", version), (path, action)
    assert re.findall(r"pip install (.*)", text) == ["--require-hashes -r requirements/publish.txt"]
    assert "-m build --no-isolation" in text
    assert installed.count("==") == installed.count("--hash=sha256:") == 4


def test_the_sbom_has_every_locked_package_once_and_is_the_same_each_time(tmp_path):
    lock, project = LOCK_FILE.read_text("utf-8"), (ROOT / "pyproject.toml").read_text("utf-8")
    command = [sys.executable, "-m", "tests.project.sbom", tmp_path / "out" / "sbom.json"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    found = json.loads((tmp_path / "out" / "sbom.json").read_text("utf-8"))

    assert found == sbom(lock, project) == sbom(lock, project)
    assert [part["purl"] for part in found["components"]] == [
        f"pkg:pypi/{name}@{version}" for name, version in re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE)
    ]
    assert {"orjson", "psutil", "nvidia-ml-py", "pyyaml"} <= {part["name"] for part in found["components"]}
    references = [part["bom-ref"] for part in found["components"]]
    assert len(set(references)) == len(references)
    assert found["dependencies"] == [{"ref": found["metadata"]["component"]["purl"], "dependsOn": references}]


@in_make_faults
def test_the_action_writes_findings_and_a_report_into_the_job_summary(tmp_path):
    run = write_run(tmp_path / "logs", "```run", [1.0, 0.5, float("nan"), float("nan")]).with_name("run")
    telemetry = tmp_path / "bin" / "telemetry"
    telemetry.parent.mkdir()
    telemetry.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m toolkit.telemetry.cli "$@"\n')
    telemetry.chmod(0o755)
    summary = tmp_path / "summary.md"
    script = in_yaml(ACTION)["runs"]["steps"][-1]
    given = {name: default["default"] for name, default in in_yaml(ACTION)["inputs"].items()}

    def act(run):
        values = {"run": run, "min-severity": given["min-severity"], "fail": given["fail"]}
        environ = {
            name: values.get(re.sub(r"\$\{\{ inputs\.(.+) \}\}", r"\1", value), str(ACTION.parent))
            for name, value in script["env"].items()
        }
        path = f"{telemetry.parent}{os.pathsep}{os.environ['PATH']}"
        environ |= {"GITHUB_STEP_SUMMARY": str(summary), "PATH": path, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            ["bash", "-c", script["run"]],
            cwd=tmp_path,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
        )

    assert act(str(run)).returncode == 1, "the loss is not a number"
    text = summary.read_text("utf-8")
    assert text.startswith("## telemetry doctor\n\n    ")
    assert "NaN or infinite" in text
    assert "\n### " in text, "the report follows"
    refused = act("nothing")
    assert refused.returncode == 2
    assert "no run found in nothing (it does not exist)" in summary.read_text("utf-8").removeprefix(text)
