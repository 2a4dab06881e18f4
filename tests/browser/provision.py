"""Finding a Chromium to drive: the machine's own, else Debian's package, else the one Playwright downloads."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.provision import install_package, run_quietly

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

_PATIENCE_S = 400
"""A browser is large. A test that may be the first to want one has more time than this, twice."""

_NAMES = ("chromium", "chromium-browser", "google-chrome")


class NoBrowser(Exception):
    """There is no browser here, and none could be fetched; the message says what was tried."""


def chromium_file() -> Path:
    """Return a Chromium that can be started, fetched first where there is none.

    Raises:
        NoBrowser: nothing worked, with what was tried.
    """
    tried = [f"none of {', '.join(_NAMES)} is on the PATH"]
    found = _on_path()
    if found is None:
        tried.append(install_package("chromium", _PATIENCE_S))
        found = _on_path()
    if found is None:
        found = _of_playwright()
    if found is None:
        tried.append(_download())
        found = _of_playwright()
    if found is None:
        raise NoBrowser("; ".join(tried))
    return found


@contextmanager
def open_browser(arguments: Sequence[str] = ()) -> Iterator[Browser]:
    """Open a browser for tests; skips the test where there is none."""
    from playwright.sync_api import sync_playwright

    try:
        file = chromium_file()
    except NoBrowser as error:
        pytest.skip(f"there is no browser to drive: {error}")
    with sync_playwright() as playwright:
        browser = _launch(file, playwright, arguments)
        yield browser
        browser.close()


def _launch(chromium: Path, playwright: Playwright, arguments: Sequence[str]) -> Browser:
    # Root has no namespace to put a sandbox into; /dev/shm is 64 MB in many a container.
    as_root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return playwright.chromium.launch(
        executable_path=str(chromium), args=["--disable-dev-shm-usage", *arguments, *as_root]
    )


def _on_path() -> Path | None:
    return next((Path(path) for name in _NAMES if (path := shutil.which(name))), None)


def _of_playwright() -> Path | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    return path if path.is_file() else None


def _download() -> str:
    said = run_quietly([sys.executable, "-m", "playwright", "install", "chromium"], _PATIENCE_S)
    return f"playwright install chromium: {said or 'done'}"
