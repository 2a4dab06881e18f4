"""Every guarantee has a test, and every figure comes from one."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
import textwrap

import pytest

from benchmarks.guarantees import COUNTED, DOCUMENTS, counted_in, figure_of, proofs_in, with_figures
from tests.project.markdown import ROOT

PROMISE = re.compile(r"^### ", re.MULTILINE)


@functools.cache
def functions_in(path):
    return {
        node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_guarantee_names_an_existing_test(document):
    promises = PROMISE.split(document.read_text("utf-8"))[1:]

    assert len(promises) >= 20
    for promise in promises:
        proofs = proofs_in(promise)
        assert proofs, promise.partition("\n")[0]
        for name, _ in proofs:
            path, _, function = name.partition("::")
            assert function in functions_in(ROOT / path), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_figure_is_the_latest_one(document):
    counted = json.loads(COUNTED.read_text("utf-8"))
    text = document.read_text("utf-8")

    assert [name for name, _ in proofs_in(text) if name not in counted] == []
    assert with_figures(text, counted) == text


@pytest.mark.parametrize(
    ("document", "letter"),
    [(DOCUMENTS[0], "G"), (DOCUMENTS[1], "T")],
    ids=["promises", "threats"],
)
def test_no_number_is_left_out(document, letter):
    numbers = re.findall(rf"^### {letter}(\d+)\b", document.read_text("utf-8"), re.MULTILINE)

    assert [int(number) for number in numbers] == [*range(1, len(numbers) + 1)]


def test_a_report_becomes_figures(pytester_report):
    report = pytester_report(
        """
        import pytest

        def test_counts(record_property):
            record_property("measured", "7 kills, 0 lost")

        @pytest.mark.parametrize("number", [1, 2, 3])
        def test_has_cases(number):
            pass

        def test_lacks_something():
            pytest.skip("no such disk")
        """
    )

    counted = counted_in(report)

    assert {name.partition("::")[2]: figure_of(entry) for name, entry in counted.items()} == {
        "test_counts": "7 kills, 0 lost",
        "test_has_cases": "3 cases",
        "test_lacks_something": "not run: what it needs was missing",
    }
    (name,) = (name for name in counted if name.endswith("test_counts"))
    assert with_figures(f"- `{name}`: 3 kills\n- other", counted) == f"- `{name}`: 7 kills, 0 lost\n- other"


def test_a_report_with_a_failure_gives_no_figures(pytester_report):
    report = pytester_report("def test_fails():\n    assert False\n")

    with pytest.raises(ValueError, match="test_fails failed"):
        counted_in(report)


@pytest.fixture
def pytester_report(tmp_path):
    """Run pytest on a source text, and return the report it writes."""

    def run(source):
        (tmp_path / "tests").mkdir()
        (tmp_path / "tests" / "test_made.py").write_text(textwrap.dedent(source))
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"),
                *("-o", "junit_family=xunit1", "--rootdir", str(tmp_path)),
                *("--junitxml", str(tmp_path / "report.xml"), "tests"),
            ],
            cwd=tmp_path,
            capture_output=True,
            timeout=100,
        )
        return tmp_path / "report.xml"

    return run
