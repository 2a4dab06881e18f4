"""Local values are shown in a few words, and asked for nothing: not their text, not their device, not their secrets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.errors.local_values import shown_locals
from toolkit.telemetry.privacy.masking import Masker

TOKEN = "hf_" + "a1B2" * 9


def shown(**values):
    """Return what is shown of a frame with these values."""
    namespace = {"sys": sys}
    body = "\n".join(f"    {name} = values[{name!r}]" for name in values)
    exec(f"def hold(values):\n{body}\n    del values\n    return sys._getframe()", namespace)
    return shown_locals(namespace["hold"](values), Masker(environ={}), Guard())


def one(value):
    return shown(value=value)["value"]


class Loud:
    """Its repr must not be called."""

    def __repr__(self):
        raise AssertionError("asked")

    __str__ = __len__ = __iter__ = __eq__ = __repr__
    __hash__ = object.__hash__


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (None, "None"),
        (1.5, "1.5"),
        (True, "True"),
        ("text", "'text'"),
        (b"1234", "<4 bytes>"),
        ([1, "a"], "[1, 'a']"),
        ((1,), "(1)"),
        ({"a": 1, 2: [3]}, "{'a': 1, 2: [3]}"),
        (set(), "{}"),
        (list(range(100)), "[0, 1, 2, 3, 4, … 95 more]"),
        ([[[[1]]]], "[[[[1]]]]"),
        (1 << 5000, "an integer of 5001 bits"),
        (Loud(), f"<{__name__}.Loud>"),
        ([Loud()], f"[<{__name__}.Loud>]"),
        ({Loud(): 1}, f"{{<{__name__}.Loud>: 1}}"),
        (Path("/tmp"), f"<{type(Path()).__module__}.{type(Path()).__qualname__}>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_in_a_few_words(value, text):
    assert one(value) == text


def test_an_array_and_a_tensor_say_what_they_are_and_not_what_is_in_them():
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")

    assert one(numpy.zeros((2, 3))).startswith("<numpy.ndarray (2, 3) float64")
    assert one(torch.zeros(2, 3)) == "<torch.Tensor (2, 3) torch.float32 cpu>"


def test_values_beyond_the_room_of_a_record_are_reported_as_more():
    found = shown(**{f"v{number}": number for number in range(100)})

    assert len(found) == 26
    assert found["…"] == "more"


@pytest.mark.parametrize(
    ("values", "secret"),
    [
        ({"password": "hunter2hunter2"}, "hunter2"),
        ({"login": {"password": "hunter2hunter2"}}, "hunter2"),
        ({"token": ["abcdefghijkl"]}, "abcdefgh"),
        ({"text": f"login with {TOKEN}"}, TOKEN),
        ({"text": "x" * 1980 + " " + TOKEN * 3}, TOKEN[:8]),
        ({"arguments": {"x": [{"api_key": "0123456789abc"}]}}, "0123456789"),
        ({"keys": {TOKEN: 1}}, TOKEN),
    ],
)
def test_secrets_are_masked_by_name_and_by_look(values, secret):
    assert secret not in str(shown(**values))


def test_a_lazy_proxy_is_not_made_to_load_its_object():
    asked = []

    class Proxy:
        __class__ = property(lambda self: asked.append(self) or dict)

    assert one(Proxy()).endswith(".Proxy>")
    assert asked == []
