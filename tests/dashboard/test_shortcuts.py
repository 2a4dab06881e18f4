"""Each page of the document has a shortcut, and no two of them begin alike."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("streamlit")

from dashboard.components.shortcuts import SHORTCUTS
from tests.project.markdown import ROOT


def test_no_shortcut_begins_another_and_each_page_has_one():
    keys = [one.keys for one in SHORTCUTS]
    pages = re.findall(r"^\| [^|]+ \| `(/[a-z]*)", (ROOT / "docs" / "dashboard.md").read_text(), re.MULTILINE)

    assert len(set(keys)) == len(keys)
    assert not [one for one in keys for other in keys if other.startswith(f"{one} ")]
    assert {one.path.partition("?")[0] for one in SHORTCUTS if one.path} == set(pages)
