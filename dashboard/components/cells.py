"""Cells side by side that wrap on a narrow screen."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal

import streamlit as st


def cells(
    number: int, *, min_width: int, row_height: int | Literal["content"] = "content"
) -> Sequence[AbstractContextManager[object]]:
    """Return `number` places to draw in, in one row on a desk and in as many as it takes on a phone."""
    if hasattr(st, "grid"):
        # The grid itself puts each thing drawn into its next cell.
        return [st.grid(number, min_column_width=min_width, row_height=row_height)] * number
    return st.columns(number)
