"""What a browser sends for a widget: taken if the widget could have sent it, else its default."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit")

from streamlit.proto.WidgetStates_pb2 import WidgetState
from streamlit.runtime.state.common import WidgetMetadata
from streamlit.runtime.state.session_state import WStates

from dashboard.widget_values import _read_valid


def states_of(**sent):
    states = WStates()
    states.set_widget_metadata(
        WidgetMetadata(
            id="w",
            deserializer=lambda value: "default" if value is None else value,
            serializer=lambda value: value,
            value_type="string_value",
        )
    )
    states.set_widget_from_proto(WidgetState(id="w", **sent))
    return states


def test_a_value_of_another_type_is_the_default():
    assert _read_valid(states_of(string_value="a"), "w") == "a"
    assert _read_valid(states_of(int_value=3), "w") == "default"


def test_what_is_chosen_in_a_box_that_was_empty_is_taken():
    states = states_of()
    assert _read_valid(states, "w") == "default"

    states.set_widget_from_proto(WidgetState(id="w", string_value="a"))
    assert _read_valid(states, "w") == "a"
