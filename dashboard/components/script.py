"""Loads the script of a component, which the browser caches, and makes valid component keys."""

from __future__ import annotations

import hashlib

from dashboard.assets import page_script_url

# Streamlit sends a component's code with every message, so that code only imports the real script.
_LOADER = """\
const page = import(window.location.origin + "__URL__");
export default function (component) {
  let cleanUp = null, gone = false;
  page.then((scripts) => { if (!gone) cleanUp = scripts.__NAME__(component); });
  return () => { gone = true; if (cleanUp) cleanUp(); };
}
"""


def loader(script: str) -> str:
    """Return the code of a component that runs the function `script` of our scripts."""
    return _LOADER.replace("__URL__", page_script_url()).replace("__NAME__", script)


def component_key(key: str) -> str:
    """Return `key`, or a short hash of it if Streamlit would reject it.

    Streamlit rejects keys with two underscores and sends the key with every message; names of runs and metrics
    are arbitrary.
    """
    if len(key) <= _MAX_KEY and "__" not in key and not key.endswith("_"):
        return key
    return f"{key[:40].replace('_', '-')} {hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:16]}"


_MAX_KEY = 200
