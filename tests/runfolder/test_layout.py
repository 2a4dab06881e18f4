"""A run's name is never a path, two runs never share a folder, and no other user can read it."""

import os
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.runfolder.plain_data import tries
from toolkit.telemetry.runfolder.layout import (
    METRICS_JSONL,
    PRIVATE,
    candidate_names,
    claim_folder,
    is_safe_name,
    rank_file,
    safe_run_name,
)

posix = pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")


@tries
@given(text=st.text(st.characters(exclude_categories=()), max_size=300))
@example(text="con" + "." * 200)
@example(text="AUX." + "x" * 5000)
def test_whatever_the_text_its_name_is_safe_and_always_the_same(text):
    name = safe_run_name(text)

    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,127}", name)
    assert not name.endswith(".")
    assert name.split(".")[0].upper() not in {"CON", "PRN", "AUX", "NUL", "COM1", "LPT9"}
    assert safe_run_name(text) == name
    assert all(is_safe_name(candidate) for candidate in [*candidate_names(name)][::3333])


@pytest.mark.parametrize("name", ["greyjacket", "flux_lora-v2.1", "run+x=3@home", "2024-01-01", "a" * 100])
def test_a_plain_name_is_kept_and_others_stay_different(name):
    assert safe_run_name(name) == name
    assert safe_run_name("Köln, Straße 7") == "Koln-Strae-7"
    assert safe_run_name("x" * 5000 + "a") != safe_run_name("x" * 5000 + "b")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\\b", "a b", "-a", ".a", "a.", "con", "x" * 129, "a\n", "é"]
)
def test_what_is_no_safe_name_is_known(name):
    assert not is_safe_name(name)


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_a_name_that_something_else_has_is_not_taken(tmp_path, kind):
    if kind == "file":
        (tmp_path / "r").write_text("precious")
    else:
        (tmp_path / "r").symlink_to(tmp_path / "nowhere")

    assert claim_folder(tmp_path, "r", PRIVATE).name == "r-2"


def test_rank_zero_has_the_runs_own_file_and_the_others_one_each(tmp_path):
    assert rank_file(tmp_path, 0) == tmp_path / METRICS_JSONL
    assert rank_file(tmp_path, 1) == tmp_path / "ranks" / "00001.jsonl"
    assert rank_file(tmp_path, 123456) == tmp_path / "ranks" / "123456.jsonl"
