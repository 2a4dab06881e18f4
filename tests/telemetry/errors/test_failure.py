"""An exception becomes text at once: where it came from and what it said, and nothing that it held."""

import gc
import os
import sys
import weakref

import pytest

import toolkit.telemetry
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.errors.failure import describe_failure, describe_in_full, fingerprint_of

OURS = toolkit.telemetry.__path__[0]
TOKEN = "hf_" + "a1B2" * 9


def caught(error):
    with pytest.raises(type(error)) as raised:
        raise error
    return raised.value


def test_a_deep_stack_is_reported_from_both_ends():
    def dive(depth):
        if depth:
            dive(depth - 1)
        raise RuntimeError("deep")

    with pytest.raises(RuntimeError) as raised:
        dive(200)
    stack = describe_failure(raised.value)["stack"]

    assert len(stack) == 31
    assert stack[0].endswith("in test_a_deep_stack_is_reported_from_both_ends")
    assert stack[5] == "… 172 frames …"
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


# ---------------------------------------------------------------- in full


def in_full(error):
    guard = Guard()
    return describe_in_full(error, guard), guard


def test_module_and_notes_are_reported():
    error = ValueError("bad")
    error.__notes__ = ["in batch 7", f"with {TOKEN}"]

    found, _ = in_full(caught(error))

    assert (found["type"], found["module"]) == ("ValueError", "builtins")
    assert found["notes"][0] == "in batch 7"
    assert TOKEN not in found["notes"][1]


def test_what_caused_it_and_what_it_came_in_the_middle_of_are_reported_nearest_first():
    def fail():
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise OSError("second")  # noqa: B904 - it is the context that is meant
        except OSError as error:
            raise RuntimeError("third") from error

    with pytest.raises(RuntimeError) as raised:
        fail()
    found, _ = in_full(raised.value)

    assert [(cause["type"], cause["link"]) for cause in found["caused_by"]] == [
        ("OSError", "cause"),
        ("KeyError", "context"),
    ]
    assert found["caused_by"][0]["stack"][-1].endswith("in fail")


def test_a_chain_that_leads_back_to_itself_ends():
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one

    assert [cause["message"] for cause in in_full(one)[0]["caused_by"]] == ["ValueError: other"]


class Group(Exception):
    """As packages bring it to a Python that has none."""

    def __init__(self, message, exceptions):
        super().__init__(message)
        self.exceptions = exceptions


Group.__name__ = "BaseExceptionGroup"


@pytest.mark.parametrize(
    "make",
    [
        Group,
        pytest.param(
            lambda *args: ExceptionGroup(*args),  # noqa: F821 - of Python 3.11 on
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="has none"),
        ),
    ],
)
def test_a_group_is_reported_with_what_is_in_it(make):
    inner = make("inner", [KeyError("a")])
    error = make("several", [caught(ValueError("x")), inner, *(OSError(str(n)) for n in range(20))])

    found, guard = in_full(error)

    assert [each["type"] for each in found["group"][:2]] == ["ValueError", type(inner).__name__]
    assert found["group"][0]["stack"][-1].endswith("in caught")
    assert found["group"][1]["group"][0]["message"] == "KeyError: 'a'"
    assert (len(found["group"]), found["in_group"]) == (10, 22)
    assert guard.total == 0


class Weird(Exception):
    """Its class overrides the attributes that describe it."""

    __traceback__ = property(lambda self: 1 / 0)
    __cause__ = "no exception"
    __notes__ = 7

    def __str__(self):
        raise SystemError("no")


def test_an_exception_that_cannot_be_read_is_reported_as_far_as_it_can():
    try:
        raise Weird
    except Weird as error:
        found, guard = in_full(error)

    assert found["type"] == "Weird"
    assert found["message"] == "Weird: its message could not be read"
    assert found["stack"][-1].endswith(
        "in test_an_exception_that_cannot_be_read_is_reported_as_far_as_it_can"
    )
    assert guard.total == 0


@pytest.mark.parametrize("place", [0, 700, 1_900, 2_100, 2_600, 4_000, 7_000])
def test_no_secret_is_shown_because_its_name_was_cut_off(place):
    secret = "correct-horse-battery"
    text = "word " * (place // 5) + f"password = {secret} " + "word " * (2_000 - place // 5)

    assert secret not in in_full(ValueError(text))[0]["message"]
    assert secret not in describe_failure(ValueError(text))["message"]


def test_frames_of_ours_are_left_out_and_those_of_the_script_are_there(tmp_path):
    seen = []

    def script():
        ours(fail)

    def fail():
        raise ValueError("bad")

    def ours(function):
        # As an integration does it: it wraps a method, and records its exceptions.
        namespace = {"function": function, "seen": seen, "in_full": in_full}
        source = "try:\n    function()\nexcept ValueError as error:\n    seen.append(in_full(error)[0])"
        exec(compile(source, os.path.join(OURS, "integrations", "made_up.py"), "exec"), namespace)

    script()
    functions = [line.rpartition(" in ")[2] for line in seen[0]["stack"]]

    assert functions[-3:] == ["script", "ours", "fail"]
    assert not [line for line in seen[0]["stack"] if "made_up" in line]
    # Which error it is does not depend on where it was recorded.
    assert in_full(caught_here(fail))[0]["stack"][-1] == seen[0]["stack"][-1]


def caught_here(function):
    with pytest.raises(ValueError) as raised:
        function()
    return raised.value


def test_an_error_that_is_recorded_later_has_no_frames_of_its_recorder():
    def fail():
        raise ValueError("bad")

    error = caught_here(fail)
    functions = [line.rpartition(" in ")[2] for line in in_full(error)[0]["stack"]]

    assert functions == ["caught_here", "fail"]


# ---------------------------------------------------------------- the same one come again


def fail_here(number):
    raise ValueError(f"batch {number}")


def fail_there(number):
    raise ValueError(f"batch {number}")


def raised_by(function, number):
    with pytest.raises(ValueError) as raised:
        function(number)
    return raised.value


def test_the_same_place_and_type_is_the_same_error_whatever_it_says():
    one, other = [fingerprint_of(raised_by(fail_here, number)) for number in (1, 2)]

    assert one == other
    assert len({one, fingerprint_of(raised_by(fail_there, 1)), fingerprint_of(ValueError("batch 1"))}) == 3
