"""Every guarantee has a test."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from tests.project.markdown import ROOT

PROMISE = re.compile(r"^### ", re.MULTILINE)
PROOF = re.compile(r"^- `(tests/\S+\.py)::(\w+)`", re.MULTILINE)
GUARANTEES, THREATS = (ROOT / "docs" / name for name in ("guarantees.md", "threats.md"))


@functools.cache
def functions_in(path):
    return {
        node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("document", [GUARANTEES, THREATS], ids=lambda path: path.name)
def test_every_guarantee_names_an_existing_test(document):
    promises = PROMISE.split(document.read_text("utf-8"))[1:]

    assert len(promises) >= 20
    for promise in promises:
        proofs = PROOF.findall(promise)
        assert proofs, promise.partition("\n")[0]
        for path, function in proofs:
            assert function in functions_in(ROOT / path), f"{path}::{function}"


@pytest.mark.parametrize(
    ("document", "letter"), [(GUARANTEES, "G"), (THREATS, "T")], ids=["promises", "threats"]
)
def test_no_number_is_left_out(document, letter):
    numbers = re.findall(rf"^### {letter}(\d+)\b", document.read_text("utf-8"), re.MULTILINE)

    assert [int(number) for number in numbers] == [*range(1, len(numbers) + 1)]


def test_every_hook_of_a_trainer_names_an_existing_test():
    table = (
        (ROOT / "docs/integrations/transformers.md").read_text("utf-8").partition("### From which hook")[2]
    )
    named = re.findall(r"`(test_\w+\.py)::(\w+)`", table)

    assert len(named) >= 10
    for file, function in named:
        assert function in functions_in(ROOT / "tests/telemetry/integrations" / file), f"{file}::{function}"
