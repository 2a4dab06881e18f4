"""A run's name is never a path, two runs never share a folder, and no other user can read it."""

import os
import re
import stat

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.runfolder.plain_data import tries
from toolkit.telemetry.runfolder.layout import (
    METRICS_JSONL,
    PRIVATE,
    SHARED,
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
def test_a_plain_name_is_kept_as_it_is(name):
    assert safe_run_name(name) == name


def test_accents_are_taken_off():
    assert safe_run_name("Köln, Straße 7") == "Koln-Strae-7"


def test_two_long_names_that_differ_at_the_end_stay_two_names():
    assert safe_run_name("x" * 5000 + "a") != safe_run_name("x" * 5000 + "b")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\\b", "a b", "-a", ".a", "a.", "con", "x" * 129, "a\n", "é"]
)
def test_what_is_no_safe_name_is_known(name):
    assert not is_safe_name(name)


def test_runs_that_ask_for_one_name_are_numbered(tmp_path):
    folders = [claim_folder(tmp_path, "r", PRIVATE).name for _ in range(4)]

    assert folders == ["r", "r-2", "r-3", "r-4"]


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_a_name_that_something_else_has_is_not_taken(tmp_path, kind):
    if kind == "file":
        (tmp_path / "r").write_text("precious")
    else:
        (tmp_path / "r").symlink_to(tmp_path / "nowhere")

    assert claim_folder(tmp_path, "r", PRIVATE).name == "r-2"


@posix
@pytest.mark.parametrize(
    ("modes", "umask", "found"),
    [
        (PRIVATE, 0o000, 0o700),
        (PRIVATE, 0o022, 0o700),
        (PRIVATE, 0o077, 0o700),
        (SHARED, 0o000, 0o755),
        (SHARED, 0o022, 0o755),
        (SHARED, 0o027, 0o750),
        (SHARED, 0o077, 0o700),
    ],
)
def test_a_folder_is_private_unless_shared_and_never_wider_than_the_umask_allows(
    tmp_path, modes, umask, found
):
    before = os.umask(umask)
    try:
        folder = claim_folder(tmp_path, "r", modes)
    finally:
        os.umask(before)

    assert stat.S_IMODE(folder.stat().st_mode) == found


def test_rank_zero_has_the_runs_own_file_and_the_others_one_each(tmp_path):
    assert rank_file(tmp_path, 0) == tmp_path / METRICS_JSONL
    assert rank_file(tmp_path, 1) == tmp_path / "ranks" / "00001.jsonl"
    assert rank_file(tmp_path, 123456) == tmp_path / "ranks" / "123456.jsonl"
