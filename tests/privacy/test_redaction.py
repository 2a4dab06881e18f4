"""What is sent of texts: without secrets, paths, addresses and the names of the machine and its user."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.privacy.planted import ENVIRON, HARMLESS, PLANTED, found_in
from toolkit.telemetry.privacy.redaction import Redactor

CONTEXTS = ("{}", "could not use {} now", "({})", 'File "{}", line 3', "x={}")
FREE = [value for kind, value in PLANTED if kind != "model"]
PRIVATE = [value for kind, value in PLANTED if kind not in ("model", "random")]
PUBLIC = [text for text in HARMLESS if not any(sign in text for sign in ("/", "@", "12.4.", "2.13.0.1"))]


@pytest.mark.parametrize("context", CONTEXTS)
def test_no_private_value_is_left_in_any_text(context):
    redactor = Redactor(environ=ENVIRON)

    assert [
        text
        for text in (PRIVATE if context == "x={}" else FREE)
        if found_in(redactor.redact_text(context.format(text)).encode(), text)
    ] == []


def test_no_private_value_is_left_in_values_or_keys():
    given = {"list": PRIVATE, "keys": {text: number for number, text in enumerate(PRIVATE)}}
    sent = json.dumps(Redactor(environ=ENVIRON).redact(given)).encode()

    assert [text for text in PRIVATE if found_in(sent, text)] == []


def test_ordinary_text_is_sent_as_it_is():
    redactor = Redactor(environ=ENVIRON)

    assert len(PUBLIC) > 80
    assert [(text, redactor.redact_text(text)) for text in PUBLIC if redactor.redact_text(text) != text] == []


def test_a_kind_is_named_in_place_of_the_value():
    redactor = Redactor(environ={"USER": "jane.roe"}, names=["gpu-box-17"])

    assert redactor.redact_text("jane.roe on gpu-box-17: no /srv/x now, ask a@b.example at 10.0.0.7") == (
        "<name> on <name>: no <path> now, ask <email> at <ip>"
    )


@pytest.mark.parametrize("name", ["root", "user", "ubuntu", "admin", "adam", "train", "bob"])
def test_a_name_that_is_also_a_word_or_everyones_is_kept(name):
    text = f"{name} is fine"

    assert Redactor(environ={"USER": name}).redact_text(text) == text


@given(st.text(alphabet="/\\:.~@'\" \nabC1-=%", max_size=60))
def test_any_text_is_rewritten_to_a_text(text):
    assert isinstance(Redactor(environ={}).redact_text(text), str)
