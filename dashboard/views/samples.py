"""Samples page: what the model generates for each prompt over the steps."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

import pandas as pd
import streamlit as st

from dashboard import session
from dashboard.components import page_states
from dashboard.components.frame import RunPage, live, open_run, read
from dashboard.data.formatting import clean, count, md
from dashboard.data.logged_tables import table_of
from dashboard.data.run_store import Refused
from toolkit.runfolder.records import SAMPLE, Record

_IMAGES: Final = (".png", ".jpg", ".jpeg", ".webp", ".gif")
_AUDIO: Final = (".wav", ".mp3", ".ogg", ".flac")
_VIDEO: Final = (".mp4", ".webm")
_MAX_FILE: Final = 20_000_000
_MAX_RECORDS: Final = 4_000
_SMALL: Final = 256
_MAX_PIXELS: Final = 40_000_000
_MAX_ASPECT: Final = 20
"""Height by width: a strip one pixel wide would be scaled to thousands of screens."""
_OTHERS: Final = ("text", "table", "histogram")
_MAX_TEXTS: Final = 50
_SIGNATURES: Final = (b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"GIF8")


def main() -> None:
    """Draw the page."""
    page = open_run()
    if page is None:
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        search = st.text_input(
            "Prompt",
            key="prompt",
            bind="query-params",
            placeholder="search prompts",
            icon=":material/search:",
            label_visibility="collapsed",
        )
        columns = session.pick_one(
            "Steps shown", (4, 6, 8, 12), default=6, key="shown", label_visibility="collapsed"
        )
    live(page, "The samples", lambda: _samples(page, search.strip().lower(), columns))


def _samples(page: RunPage, search: str, columns: int) -> None:
    read(page)
    records = [
        record
        for record in page.store.events(page.key, (SAMPLE,), limit=_MAX_RECORDS)
        if isinstance(record.get("path"), str)
    ]
    others = page.store.events(page.key, _OTHERS, limit=_MAX_RECORDS)
    if not records and not others:
        with st.container(border=True):
            st.markdown("**No samples yet.**")
            st.caption(
                "Log one with `log.log_sample(step, path, prompt=…)`. The example trainer logs four every 100 steps."
            )
        return
    _images(page, records, search, columns)
    page_states.guarded("Texts and tables", lambda: _texts(others, search))


def _images(page: RunPage, records: Sequence[Record], search: str, columns: int) -> None:
    by_prompt: dict[str, list[Record]] = {}
    for record in reversed(records):
        by_prompt.setdefault(str(record.get("prompt", "")), []).append(record)
    matching = {prompt: found for prompt, found in by_prompt.items() if search in prompt.lower()}
    if by_prompt and not matching:
        st.info("No prompts match.", icon=":material/search_off:")
    for prompt, found in list(matching.items())[:30]:
        _prompt(page, prompt, found, columns)
    if len(matching) > 30:
        st.caption(f"Showing 30 of {count(len(matching))} prompts; use the search to find others.")


def _texts(records: Sequence[Record], search: str) -> None:
    """Show the newest text, table or histogram of each name; other tools log them."""
    newest: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        newest.setdefault((str(record.get("name", "")), str(record["event"])), []).append(record)
    matching = {key: found for key, found in newest.items() if search in key[0].lower()}
    for (name, kind), found in list(matching.items())[:_MAX_TEXTS]:
        step = found[0].get("global_step")
        where = f", step {step:,}" if isinstance(step, int) else ""
        with st.expander(f"{md(name, 100) or kind} :gray[{kind}{where}, {count(len(found))} logged]"):
            _content(kind, found[0].get("content"), name)
    if len(matching) > _MAX_TEXTS:
        st.caption(f"Showing {_MAX_TEXTS} of {count(len(matching))}; use the search to find others.")


def _content(kind: str, content: object, name: str) -> None:
    rows = table_of(kind, content)
    if rows is not None:
        st.dataframe(pd.DataFrame(rows), hide_index=True, alt=f"{kind} {name[:100]}")
    else:
        text = content if isinstance(content, str) else json.dumps(content, indent=1, default=str)
        st.code(clean(text)[:20_000], language=None, wrap_lines=True)


def _prompt(page: RunPage, prompt: str, found: Sequence[Record], columns: int) -> None:
    samples = "1 sample" if len(found) == 1 else f"{count(len(found))} samples"
    st.markdown(f"**{md(prompt, 300) or '(no prompt)'}** :gray[{samples}]")
    for cell, record in zip(_cells(columns), _spread(found, columns), strict=False):
        # One container per sample keeps its elements together in one cell.
        with cell, st.container():
            page_states.guarded("This sample", lambda record=record: _sample(page, record))  # type: ignore[misc]  # bound now


def _cells(number: int) -> Sequence[AbstractContextManager[object]]:
    """Return `number` cells: one row on a wide screen, as many rows as needed on a phone."""
    if hasattr(st, "grid"):
        # The grid itself puts each element into its next cell.
        return [st.grid(number, min_column_width=100, row_height="content")] * number
    return st.columns(number)


def _spread(found: Sequence[Record], places: int) -> list[Record]:
    """Return the first, the last, and evenly spaced ones in between."""
    if len(found) <= places:
        return list(found)
    return [found[round(place * (len(found) - 1) / (places - 1))] for place in range(places)]


def _sample(page: RunPage, record: Mapping[str, object]) -> None:
    path = str(record["path"])
    step = record.get("global_step")
    caption = f"step {step:,}" if isinstance(step, int) else ""
    ending = path[path.rfind(".") :].lower()
    try:
        data = page.store.read_file(page.key, path, max_bytes=_MAX_FILE)
    except Refused as error:
        st.caption(f"{caption}: {md(str(error))}")
        return
    if ending in _IMAGES and data.startswith(_SIGNATURES):
        _image(data, caption, str(record.get("prompt", "")))
    elif ending in _AUDIO:
        st.audio(data)
        st.caption(caption)
    elif ending in _VIDEO:
        st.video(data)
        st.caption(caption)
    else:
        st.caption(f"{caption} {md(path, 80)}")
        if ending == ".txt":
            st.code(clean(data[:2_000].decode("utf-8", "replace")), language=None, wrap_lines=True)


def _image(data: bytes, caption: str, prompt: str) -> None:
    from PIL import Image, UnidentifiedImageError  # Pillow comes with Streamlit, and only this page needs it

    try:
        with Image.open(io.BytesIO(data)) as image:
            # Checked from the header, before the image is decoded.
            if image.width * image.height > _MAX_PIXELS or image.height > _MAX_ASPECT * image.width:
                st.caption(
                    f"{caption}: {image.width:,} x {image.height:,} pixels, too large or too tall to show"
                )
                return
            shown: bytes | Image.Image = data
            if image.width < _SMALL:
                # Small images are enlarged without blur; large ones are sent unchanged.
                factor = max(1, _SMALL // image.width)
                size = (image.width * factor, image.height * factor)
                shown = image.convert("RGB").resize(size, Image.Resampling.NEAREST)
            else:
                image.verify()
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        st.caption(f"{caption}: not an image ({md(str(error), 80)})")
        return
    st.image(shown, caption=caption, width="stretch", alt=f"{prompt[:100]}, {caption}")


main()
