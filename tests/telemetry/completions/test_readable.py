"""Prompts and answers in the forms that scripts have them, as texts."""

from __future__ import annotations

import pytest

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.records.completions.readable import readable
from toolkit.telemetry.logger.records.device_scalars import DeviceScalars
from toolkit.telemetry.logger.records.plain_values import PlainValues

TREE = PlainValues(Guard(), DeviceScalars()).tree


class Shout(str):  # noqa: SLOT000 - as people write it
    """A text of a class of the caller's."""

    def __str__(self):
        return "not this"


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
PARTS = [{"type": "text", "text": "What is it?"}, {"type": "image", "image": object()}]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {"a": 1}}]}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        (None, None),
        (Shout("a text"), "a text"),
        (b"sch\xc3\xb6n", "schön"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (bytearray(b"abc"), "abc"),
        (memoryview(b"abc"), "abc"),
        ([{"role": "user", "content": "Why?"}], "Why?"),
        ({"role": "assistant", "content": "Because."}, "Because."),
        ([{"role": "tool", "content": "42"}], "tool: 42"),
        (CHAT, "system: Be brief.\n\nuser: Why?"),
        ([{"role": "user", "content": PARTS}], "What is it?\n[image]"),
        ([{"role": "user", "content": None}, {"role": "user", "content": "b"}], "user: \n\nuser: b"),
        (7, "7"),
        ([1, 2], "[\n  1,\n  2\n]"),
        ({"question": "Why?"}, '{\n  "question": "Why?"\n}'),
        ([], "[]"),
        ([{"role": "user"}], '[\n  {\n    "role": "user"\n  }\n]'),
        (2**70, str(2**70)),
        (object(), "<object>"),
    ],
)
def test_every_form_becomes_one_text(given, text):
    assert readable(given, TREE) == text


def test_a_call_of_a_tool_is_shown_with_its_arguments():
    text = readable([CALL], TREE)

    assert text.startswith("[tool_calls] ")
    assert '"name": "add"' in text


def test_a_chat_that_contains_itself_has_an_end():
    message = {"role": "user", "content": []}
    message["content"].append(message)

    assert "<itself>" in readable([message], TREE)


def test_of_endless_bytes_only_the_beginning_is_decoded():
    assert len(readable(b"a" * 5_000_000, TREE)) < 300_000
