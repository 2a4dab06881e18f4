"""How a component finds its code: fetched once from the server, and kept by the browser."""

from __future__ import annotations

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
