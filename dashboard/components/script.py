"""How a component finds its code, fetched once from the server and kept by the browser, and what it is known by."""

from __future__ import annotations

import hashlib

from dashboard.assets import script_url

# Streamlit sends a component's code with each of its messages, so what it sends only fetches the code proper.
_LOADER = """\
const code = import(window.location.origin + "__URL__");
export default function (component) {
  let cleanUp = null, gone = false;
  code.then((script) => { if (!gone) cleanUp = script.default(component); });
  return () => { gone = true; if (cleanUp) cleanUp(); };
}
"""


def loader(script: str) -> str:
    """Return code for a component that runs one of our scripts."""
    return _LOADER.replace("__URL__", script_url(script))


def component_key(key: str) -> str:
    """Return what Streamlit may know a component by: `key` itself, or where that will not do a short word for it.

    Streamlit joins the parts of its own names with two underscores and takes no component whose key has some, and sends
    the key along with each message; runs and metrics may be called anything.
    """
    if len(key) <= _LONGEST_KEY and "__" not in key and not key.endswith("_"):
        return key
    return f"{key[:40].replace('_', '-')} {hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:16]}"


_LONGEST_KEY = 200
