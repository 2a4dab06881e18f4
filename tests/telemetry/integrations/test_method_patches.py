"""Patches on a framework's objects call their hooks, never raise, and are removed again."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.integrations.method_patches import MethodPatches


class Trainer:
    """A framework's object."""

    def __init__(self, name="one"):
        self.name = name

    def save(self, path, *, is_last=False):
        """Save as the class does."""
        if path is None:
            raise ValueError("no path")
        return f"{self.name} saved {path}, {is_last}"


class Slotted:
    """An object that takes no attributes."""

    __slots__ = ()

    def save(self):
        """Save as the class does."""
        return "saved"


def broken(*_, **__):
    """Fail, as a hook of ours might."""
    raise RuntimeError("ours")


def broken_after(*_, **__):
    """Fail after the call, also after one that has failed."""
    try:
        yield
    finally:
        broken()


def test_what_runs_around_a_call_has_its_arguments_its_result_and_its_exception():
    trainer, seen = Trainer(), []

    def follow(path, *, is_last=False):
        seen.append((path, is_last))
        try:
            seen.append((yield))
        except ValueError as error:
            seen.append(str(error))
            raise

    MethodPatches(Guard()).follow(trainer, "save", follow)
    trainer.save("a", is_last=True)
    with pytest.raises(ValueError, match="no path"):
        trainer.save(None)

    assert seen == [("a", True), "one saved a, True", (None, False), "no path"]


def test_a_later_patch_of_another_package_stays():
    trainer = Trainer()
    patches = MethodPatches(Guard())
    patches.wrap(trainer, "save", lambda _: lambda: "ours")
    trainer.save = lambda: "another's"
    patches.undo()

    assert trainer.save() == "another's"


def test_failing_hooks_are_counted_and_do_not_reach_the_caller():
    trainer, guard = Trainer(), Guard()
    patches = MethodPatches(guard)
    patches.follow(trainer, "save", broken)
    patches.follow(trainer, "save", broken_after)
    patches.time(trainer, "save", broken)

    assert trainer.save("a") == "one saved a, False"
    with pytest.raises(ValueError, match="no path"):
        trainer.save(None)
    assert guard.counts == {"following save: RuntimeError": 6}


def test_what_cannot_be_patched_is_left_alone():
    slotted, guard = Slotted(), Guard()
    patches = MethodPatches(guard)
    patches.follow(slotted, "save", broken)
    patches.follow(slotted, "missing", broken)
    patches.follow(None, "save", broken)

    assert slotted.save() == "saved"
    assert guard.counts == {"patching save: TypeError": 1}


def test_hooks_are_not_called_after_undo_through_a_kept_reference():
    trainer, seen = Trainer(), []
    patches = MethodPatches(Guard())
    patches.follow(trainer, "save", lambda *_, **__: seen.append("called"))
    kept = trainer.save
    patches.undo()

    assert kept("a") == "one saved a, False"
    assert seen == []


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_of_the_object_have_their_own_methods(copied):
    trainer, seen = Trainer(), []
    patches = MethodPatches(Guard())
    patches.follow(trainer, "save", lambda *_, **__: seen.append("called"))
    other = copied(trainer)
    if copied is not copy.copy:
        other.name = "other"
        assert other.save("a") == "other saved a, False"
        assert seen == []
    assert trainer.save("a") == "one saved a, False"
    assert seen == ["called"]


def test_a_patched_method_keeps_its_name_and_signature():
    trainer = Trainer()
    patches = MethodPatches(Guard())
    patches.follow(trainer, "save", lambda *_, **__: None)

    assert trainer.save.__name__ == "save"
    assert inspect.signature(trainer.save) == inspect.signature(Trainer().save)
