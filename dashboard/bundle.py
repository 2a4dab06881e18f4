"""One response with every script that the first page needs, instead of some hundred requests.

Streamlit's scripts are ES modules that import each other by relative URL. A short script in the page fetches the
bundle, makes a blob of each module, and maps each import to its blob with an import map. Modules outside of the bundle
are loaded as usual, and share the ones in it. A browser without import maps loads everything as usual.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

_URL: Final = "/static/js/"
_BARE: Final = "streamlit/"
"""Stands for `_URL` in the imports of a bundled module: relative URLs have no meaning in a blob."""
_IMPORT: Final = re.compile(rb"""(\b(?:from|import)\s*\(?\s*)(["'`])\./([\w.-]+\.js)\2""")
_FIRST_PAGE: Final = (
    "BidiComponent",
    "Button",
    "ButtonGroup",
    "Checkbox",
    "MenuButton",
    "Multiselect",
    "NumberInput",
    "PageLink",
    "Progress",
    "Selectbox",
    "Slider",
    "TextInput",
    "Toast",
    "remark-emoji",
)
"""Names of the modules that Streamlit loads when a page uses them, as the Overview does."""

_VERSION: Final = "1"
"""Of what is done to the modules; part of the URL."""

# Streamlit asks for its own address and settings in two steps, at two addresses, before it opens the WebSocket. Known
# beforehand, it opens it at once. An origin that cannot exist: no other page may send messages to this one.
_SETTINGS: Final = """
window.__streamlit = {
  BACKEND_BASE_URL: window.location.origin,
  HOST_CONFIG: { allowedOrigins: ["https://none.invalid"], useExternalAuthToken: false, metricsUrl: "" },
};
"""
_STARTER: Final = """
(() => {
  const start = (src) => {
    const script = document.createElement("script");
    script.type = "module";
    script.crossOrigin = "";
    script.src = src;
    document.head.appendChild(script);
  };
  const usual = () => start("__URL____ENTRY__");
  if (!window.HTMLScriptElement.supports || !HTMLScriptElement.supports("importmap")) { usual(); return; }
  fetch("__BUNDLE__").then((answer) => answer.ok ? answer.arrayBuffer() : Promise.reject()).then((bytes) => {
    const newline = new Uint8Array(bytes).indexOf(10);
    const imports = { "__BARE__": "__URL__" };
    let at = newline + 1;
    for (const [path, bare, length] of JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 0, newline)))) {
      const url = URL.createObjectURL(new Blob([new Uint8Array(bytes, at, length)], { type: "text/javascript" }));
      imports[path] = url;
      if (bare) imports[bare] = url;
      at += length;
    }
    const map = document.createElement("script");
    map.type = "importmap";
    map.textContent = JSON.stringify({ imports });
    document.head.appendChild(map);
    start(imports["__BARE____ENTRY__"]);
  }).catch(usual);
})();
"""


@dataclass(frozen=True)
class Bundle:
    """The modules of the first page."""

    folder: Path
    """Of Streamlit's scripts."""
    entry: str
    """The script that the page starts with."""
    modules: tuple[str, ...]
    ours: Mapping[str, bytes]
    """Our own modules by URL path."""

    @cached_property
    def url(self) -> str:
        """Its URL path, which changes with its content: names of Streamlit's scripts contain a hash."""
        about = "\n".join((_VERSION, *self.modules, *self.ours))
        return f"/assets/bundle-{zlib.crc32(about.encode()):08x}"

    @cached_property
    def starter(self) -> str:
        """JavaScript that fetches the bundle and starts the page."""
        code = _SETTINGS + _STARTER
        for name, value in (("URL", _URL), ("BARE", _BARE), ("ENTRY", self.entry), ("BUNDLE", self.url)):
            code = code.replace(f"__{name}__", value)
        return code

    def content(self) -> bytes:
        """Return a line of JSON with URL path, bare name and length of each module, then the modules."""
        found = [(f"{_URL}{name}", f"{_BARE}{name}", self._module(name)) for name in self.modules]
        found += [(path, "", code) for path, code in self.ours.items()]
        index = json.dumps([(path, bare, len(code)) for path, bare, code in found])
        return b"".join((index.encode(), b"\n", *(code for _, _, code in found)))

    def _module(self, name: str) -> bytes:
        code = _IMPORT.sub(rb"\1\2" + _BARE.encode() + rb"\3\2", (self.folder / name).read_bytes())
        return code.replace(b"import.meta.url", f'(location.origin+"{_URL}{name}")'.encode())

    @cached_property
    def compressed(self) -> bytes:
        """The content, compressed."""
        return gzip.compress(self.content(), 6, mtime=0)


def bundle_of(static: Path, ours: Mapping[str, bytes]) -> Bundle | None:
    """Return the bundle of the Streamlit whose files are in `static`; None if they are not as expected."""
    try:
        manifest: dict[str, dict[str, Any]] = json.loads((static / "manifest.json").read_bytes())
        entry = next(key for key, item in manifest.items() if item.get("isEntry"))
        lazy = [key for key, item in manifest.items() if item.get("name") in _FIRST_PAGE]
        files = [manifest[key]["file"] for key in _with_imports(manifest, [entry, *lazy])]
    except (OSError, ValueError, KeyError, AttributeError, StopIteration):
        return None
    folder = static / _URL.strip("/")
    names = [str(file).rpartition("/")[2] for file in files if f"/{file}".startswith(_URL)]
    if not names or not all((folder / name).is_file() for name in names):
        return None
    return Bundle(folder, names[0], tuple(names), dict(ours))


def _with_imports(manifest: Mapping[str, Mapping[str, Any]], keys: Iterable[str]) -> list[str]:
    """Return `keys` and everything they import, without what is imported only when needed."""
    found: dict[str, None] = {}
    left = list(keys)[::-1]
    while left:
        key = left.pop()
        if key not in found:
            found[key] = None
            left += list(manifest[key].get("imports", ()))[::-1]
    return list(found)
