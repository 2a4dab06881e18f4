"""What a training resumes from."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture
def saved(tmp_path):
    return tmp_path / "output" / "tiny_neon_lora"


def test_the_checkpoint_that_was_written_last_is_resumed(train, saved, capsys):
    assert train("--steps", "3") == 0
    # Put back, as from a backup.
    os.utime(saved / "tiny_neon_lora_000000002.pt")
    assert train("--steps", "3") == 0

    assert "tiny_neon_lora_000000002.pt at step 2" in capsys.readouterr().out


@pytest.mark.parametrize("what", [None, torch.zeros(2), {"state": 1}])
def test_a_checkpoint_that_cannot_be_read_is_named_and_nothing_is_trained(
    train, saved, tmp_path, capsys, what
):
    saved.mkdir(parents=True)
    path = saved / "tiny_neon_lora_000000002.pt"
    torch.save(what, path) if what is not None else path.write_bytes(b"half a file")

    assert train() == 2
    assert "tiny_neon_lora_000000002.pt cannot be resumed" in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()
