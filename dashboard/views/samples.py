"""Samples page: what the model makes of each prompt, step after step."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Final

import streamlit as st

from dashboard.components import page_states
from dashboard.components.cells import cells
from dashboard.components.frame import RunPage, live, open_run, read
from dashboard.data.run_store import Refused
from dashboard.data.formatting import clean, count, md
from toolkit.runfolder.records import SAMPLE, Record

_IMAGES: Final = (".png", ".jpg", ".jpeg", ".webp", ".gif")
_AUDIO: Final = (".wav", ".mp3", ".ogg", ".flac")
_VIDEO: Final = (".mp4", ".webm")
_MAX_FILE: Final = 20_000_000
_MOST_RECORDS: Final = 4_000
_SMALL: Final = 256
_MOST_PIXELS: Final = 40_000_000
_TALLEST: Final = 20
"""Times its width: a strip of one pixel would be drawn as wide as its cell, and thousands of screens high."""
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
            placeholder="search in prompts",
            icon=":material/search:",
            label_visibility="collapsed",
        )
        columns = st.segmented_control(
            "Steps shown",
            (4, 6, 8, 12),
            default=6,
            required=True,
            key="shown",
            bind="query-params",
            label_visibility="collapsed",
        )
    live(page, "The samples", lambda: _samples(page, search.strip().lower(), int(columns or 6)))


def _samples(page: RunPage, search: str, columns: int) -> None:
    read(page)
    records = [
        record
        for record in page.store.events(page.key, (SAMPLE,), limit=_MOST_RECORDS)
        if isinstance(record.get("path"), str)
    ]
    if not records:
        with st.container(border=True):
            st.markdown("**No samples yet.**")
            st.caption(
                "`log.log_sample(step, path, prompt=…)` puts one here; the example trainer makes four every 100 steps."
            )
        return
    by_prompt: dict[str, list[Record]] = {}
    for record in reversed(records):
        by_prompt.setdefault(str(record.get("prompt", "")), []).append(record)
    matching = {prompt: found for prompt, found in by_prompt.items() if search in prompt.lower()}
    if not matching:
        st.info("No prompt contains this.", icon=":material/search_off:")
    for prompt, found in list(matching.items())[:30]:
        _prompt(page, prompt, found, columns)
    if len(matching) > 30:
        st.caption(f"30 of {count(len(matching))} prompts; search for the others.")


def _prompt(page: RunPage, prompt: str, found: Sequence[Record], columns: int) -> None:
    st.markdown(f"**{md(prompt, 300) or 'without a prompt'}** :gray[{count(len(found))} samples]")
    for cell, record in zip(cells(columns, min_width=100), _spread(found, columns), strict=False):
        # One container a sample: what is drawn for it stays together in its cell.
        with cell, st.container():
            page_states.guarded("This sample", lambda record=record: _sample(page, record))  # type: ignore[misc]  # bound now


def _spread(found: Sequence[Record], places: int) -> list[Record]:
    """Return the first, the last, and what lies evenly between."""
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
            # The header alone says how large it would become in memory.
            if image.width * image.height > _MOST_PIXELS or image.height > _TALLEST * image.width:
                st.caption(
                    f"{caption}: {image.width:,} x {image.height:,} pixels are too many, or too tall, to show"
                )
                return
            shown: bytes | Image.Image = data
            if image.width < _SMALL:
                # Enlarged without blur: a small image is looked at pixel by pixel. A large one goes as it is.
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
