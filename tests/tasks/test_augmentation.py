"""Moved and mirrored images against numpy."""

from __future__ import annotations

import numpy as np
import torch

from wafl.base.random import Key, Purpose, uniform
from wafl.tasks.augmentation import augmented


def key(count: int) -> Key:
    zero = torch.zeros(count, dtype=torch.int64)
    return Key(zero, zero, torch.arange(count), zero)


def test_images_are_moved_and_mirrored_as_drawn() -> None:
    x = torch.rand(2, 30, 3, 5, 6) + 1.0
    result, draws = augmented(x, key(2), 2, 0.4), uniform(key(2), Purpose.AUGMENTATION, 90).view(2, 30, 3)
    moves, mirrors = set[tuple[int, int]](), 0
    for group in range(2):
        for image_index in range(30):
            down, right = (int(draw * 5) - 2 for draw in draws[group, image_index, :2])
            image = x[group, image_index].numpy()
            mirrored = bool(draws[group, image_index, 2] < 0.4)
            image = image[..., ::-1] if mirrored else image
            wide = np.pad(image, ((0, 0), (2, 2), (2, 2)))
            expected = wide[:, 2 - down : 7 - down, 2 - right : 8 - right]
            assert np.array_equal(result[group, image_index].numpy(), expected)
            moves.add((down, right))
            mirrors += mirrored
    assert {down for down, _ in moves} == {right for _, right in moves} == {-2, -1, 0, 1, 2}
    assert 10 < mirrors < 40


def test_padding_and_neighbors_change_no_draw() -> None:
    x = torch.rand(3, 8, 1, 4, 4)
    whole = augmented(x, key(3), 1, 0.5)
    assert torch.equal(augmented(x[:2, :5], key(2), 1, 0.5), whole[:2, :5])
    assert torch.equal(augmented(x, key(3), 0, 0.0), x)
