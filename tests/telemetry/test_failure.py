"""An exception becomes text at once: where it came from and what it said, and nothing that it held."""

import gc
import os
import weakref

import pytest

from toolkit.telemetry.failure import describe_failure

TOKEN = "hf_" + "a1B2" * 9


def caught(error):
    with pytest.raises(type(error)) as raised:
        raise error
    return raised.value


def test_type_message_and_stack_are_told():
    found = describe_failure(caught(ValueError("bad loss")))

    assert (found["type"], found["message"]) == ("ValueError", "ValueError: bad loss")
    assert found["stack"][-1].endswith("in caught")
    assert "test_failure.py:" in found["stack"][-1]


def test_an_exception_that_was_never_raised_has_no_stack():
    assert describe_failure(KeyError("x"))["stack"] == []


def test_a_deep_stack_is_told_from_its_end():
    def dive(depth):
        if depth:
            dive(depth - 1)
        raise RuntimeError("deep")

    with pytest.raises(RuntimeError) as raised:
        dive(200)
    stack = describe_failure(raised.value)["stack"]

    assert len(stack) == 30
    assert stack[-1].endswith("in dive")


def test_nothing_of_the_failure_is_kept_alive():
    class Big:
        pass

    def fail():
        big = Big()
        alive.append(weakref.ref(big))
        raise RuntimeError("out of memory")

    alive = []
    try:
        fail()
    except RuntimeError as error:
        found = describe_failure(error)
    gc.collect()

    assert found["message"] == "RuntimeError: out of memory"
    assert alive[0]() is None


def test_secrets_are_masked_even_where_the_message_was_cut():
    assert TOKEN not in describe_failure(RuntimeError(f"login with {TOKEN} failed"))["message"]
    for length in range(440, 500):
        message = describe_failure(RuntimeError("x" * length + " " + TOKEN * 10))["message"]
        assert TOKEN[:8] not in message


class Evil(Exception):
    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __str__


def test_a_message_that_cannot_be_read_is_said_to_be_so():
    assert describe_failure(caught(Evil()))["message"] == "Evil: its message could not be read"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), StopIteration(), MemoryError()])
def test_any_kind_of_exception_is_told(error):
    assert describe_failure(caught(error))["type"] == type(error).__name__


def test_paths_are_shown_from_here_and_without_the_name_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "project").mkdir()
    namespace = {}
    for folder in ("project", "other"):
        code = compile("def fail(): raise ValueError", str(tmp_path / folder / "train.py"), "exec")
        exec(code, namespace)
        monkeypatch.chdir(tmp_path / "project")
        with pytest.raises(ValueError) as raised:
            namespace["fail"]()
        shown = describe_failure(raised.value)["stack"][-1]

        assert str(tmp_path) not in shown
        assert shown.startswith("train.py:1" if folder == "project" else f"~{os.sep}other{os.sep}train.py:1")


def test_a_working_folder_that_is_gone_is_no_reason_to_fail(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    assert describe_failure(caught(ValueError("x")))["type"] == "ValueError"
