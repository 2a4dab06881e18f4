"""Ignores values that a widget could not have sent, so that the page is drawn with the widget's default."""

from __future__ import annotations

from typing import Any

from streamlit.runtime.state.session_state import Serialized, Value, WStates

_INVALID = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)

# A number box is registered as a double; for a box of integers the browser sends an integer.
_ALSO_SENT = {"double_value": "int_value"}

_read = WStates.__getitem__


def ignore_invalid_values() -> None:
    """Have Streamlit ignore values of another type, which would fail in every page of the tab.

    A replaced method, because Streamlit has no hook for it and docs/threats.md (T17) promises it.
    """
    WStates.__getitem__ = _read_valid  # type: ignore[method-assign]


def _read_valid(states: WStates, widget: str) -> Any:
    state, known = states.states.get(widget), states.widget_metadata.get(widget)
    if not isinstance(state, Serialized) or known is None:
        return _read(states, widget)
    try:
        sent = state.value.WhichOneof("value")
        if sent not in (None, known.value_type, _ALSO_SENT.get(known.value_type)):
            raise TypeError
        value = _read(states, widget)
        if sent is None:
            # Streamlit forgets the type of a widget that is empty, and what is chosen next would be invalid.
            states.set_widget_metadata(known)
        return value
    except _INVALID:
        default = known.deserializer(None)
        states.states[widget] = Value(default)
        return default
