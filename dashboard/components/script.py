"""Shows a component of our own, and makes valid component keys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import streamlit as st

from ..assets import page_script_url

# Streamlit sends a component's code with every message, so that code only imports the real script.
_LOADER = """\
const page = import(window.location.origin + "__URL__");
export default function (component) {
  let cleanUp = null, gone = false;
  page.then((scripts) => { if (!gone) cleanUp = scripts.__NAME__(component); });
  return () => { gone = true; if (cleanUp) cleanUp(); };
}
"""
_MAX_KEY = 200


def show_component(script: str, html: str, *, key: str, data: object, **more: Any) -> None:
    """Show `html`, filled with `data` by the function `script` of our scripts; its style is in page.css."""
    # Registered at each use: tests reset Streamlit's registry, and registering again is cheap.
    component = st.components.v2.component(
        f"telemetry_{script}",
        html=html,
        js=_LOADER.replace("__URL__", page_script_url()).replace("__NAME__", script),
        isolate_styles=False,
    )
    component(data=data, key=component_key(key), **more)


def show_markup(html: str, *, key: str) -> None:
    """Show HTML that was made from escaped text."""
    show_component("markup", '<div class="telemetry-markup"></div>', data={"html": html}, key=key)


def sent_by(key: str, name: str) -> Mapping[str, Any]:
    """Return the value `name` that the browser sent last for the component with this key; empty before that."""
    state = st.session_state.get(component_key(key))
    sent = state.get(name) if state else None
    return sent if isinstance(sent, Mapping) else {}


def component_key(key: str) -> str:
    """Return `key`, or a short hash of it if Streamlit would reject it.

    Streamlit rejects keys with two underscores and sends the key with every message; names of runs and metrics
    are arbitrary.
    """
    if len(key) <= _MAX_KEY and "__" not in key and not key.endswith("_"):
        return key
    return f"{key[:40].replace('_', '-')} {hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:16]}"


def redraw_only() -> None:
    """The callback of a state that a redrawn page reads: Streamlit reports a state only if one is registered."""
