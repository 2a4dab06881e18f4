"""What an integration puts on a framework's objects is taken away again."""

from __future__ import annotations

import pytest

from toolkit.telemetry.integrations.replaced_methods import ReplacedMethods


class Trainer:
    """A framework's object."""

    def save(self):
        """Save as the class does."""
        return "saved"


@pytest.mark.parametrize("own", [{}, {"save": None}, {"save": "the script's"}])
def test_every_object_gets_back_what_it_had(own):
    trainer = Trainer()
    vars(trainer).update(own)
    replaced = ReplacedMethods()
    replaced.put(trainer, "save", lambda: "first")
    replaced.put(trainer, "save", lambda: "second")
    assert trainer.save() == "second"
    replaced.put_back()
    replaced.put_back()

    assert vars(trainer) == own


def test_what_somebody_else_put_there_since_stays():
    trainer = Trainer()
    replaced = ReplacedMethods()
    replaced.put(trainer, "save", lambda: "ours")
    trainer.save = lambda: "another's"
    replaced.put_back()

    assert trainer.save() == "another's"
