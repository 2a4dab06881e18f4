"""What is sent of texts: without secrets, paths, addresses and the names of the machine and its user."""

from __future__ import annotations

import pytest

from tests.privacy.planted import ENVIRON, HARMLESS
from toolkit.telemetry.privacy.redaction import Redactor

PUBLIC = [text for text in HARMLESS if not any(sign in text for sign in ("/", "@", "12.4.", "2.13.0.1"))]


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
