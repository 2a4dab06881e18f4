"""What is trained on: prompts become numbers, shapes become pictures, pictures come in an order that repeats."""

from __future__ import annotations

import pytest
import torch

from toolkit.trainer.config import DatasetOptions
from toolkit.trainer.dataset import BatchOrder, training_set, validation_set
from toolkit.trainer.prompts import PROMPT_LENGTH, STYLES, VOCABULARY_SIZE, PromptError, encode_prompt
from toolkit.trainer.shapes import describe, draw, random_drawing

CPU = torch.device("cpu")


def drawing(count=16):
    return random_drawing(count, torch.Generator().manual_seed(0))


def test_a_prompt_is_its_words_in_order_filled_up_with_nothing():
    numbers = encode_prompt("a red circle, outline")

    assert len(numbers) == PROMPT_LENGTH
    assert numbers[:3] == [encode_prompt(word)[0] for word in ("red", "circle", "outline")]
    assert numbers[3:] == [0, 0, 0]
    assert max(numbers) < VOCABULARY_SIZE


def test_the_trigger_word_and_its_placeholder_are_the_same():
    assert encode_prompt("n30n red star", "n30n") == encode_prompt("[trigger] a RED star")


@pytest.mark.parametrize(
    ("prompt", "said"), [("a read circle", "unknown word 'read'"), ("red " * 7, "at most 6")]
)
def test_a_prompt_that_cannot_be_read_says_why(prompt, said):
    with pytest.raises(PromptError, match=said):
        encode_prompt(prompt)


@pytest.mark.parametrize("style", STYLES)
def test_every_style_draws_every_shape_within_bounds(style):
    pictures = draw(drawing(), style)

    assert pictures.shape == (16, 3, 32, 32)
    assert -1 <= pictures.min() < pictures.max() <= 1
    assert torch.equal(pictures, draw(drawing(), style))


def test_a_caption_names_the_style_only_where_the_base_model_knows_it():
    assert describe(drawing(1), "outline")[0].endswith(", outline")
    assert "," not in describe(drawing(1), "neon")[0]


def test_an_epoch_shows_each_picture_once_in_an_order_of_its_own():
    pictures = training_set([DatasetOptions(num_images=12)], triggered=True, device=CPU)
    order = BatchOrder(pictures, 4, seed=1)
    epochs = [
        torch.cat([order.batch(3 * epoch + place).pictures for place in range(3)]) for epoch in range(2)
    ]

    for epoch in epochs:
        assert {picture.numpy().tobytes() for picture in epoch} == {
            picture.numpy().tobytes() for picture in pictures.pictures
        }
    assert not torch.equal(*epochs)


def test_a_batch_is_the_same_whether_or_not_those_before_it_were_asked_for():
    pictures = training_set([DatasetOptions(num_images=12)], triggered=True, device=CPU)
    walked, jumped = BatchOrder(pictures, 4, seed=1), BatchOrder(pictures, 4, seed=1)
    for number in range(7):
        walked.batch(number)

    assert torch.equal(walked.batch(7).pictures, jumped.batch(7).pictures)


def test_validation_pictures_are_not_those_of_the_training():
    datasets = [DatasetOptions(num_images=20), DatasetOptions(style="striped", num_images=20)]
    trained = training_set(datasets, triggered=False, device=CPU)
    unseen = validation_set(datasets, 9, triggered=False, device=CPU)

    assert (len(trained), len(unseen)) == (40, 9)
    assert not any(torch.equal(a, b) for a in trained.pictures for b in unseen.pictures)
