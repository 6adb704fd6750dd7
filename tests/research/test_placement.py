"""Images that are moved, zoomed and turned at random, and the ball with the shape of such moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import wafl
from research.domains import clients_of
from research.reproduction import experiments as files
from research.reproduction.placement import SHRINKAGE, Placement, augmented, ball, cost_matrix_of, placed


def images(count: int = 5, size: int = 28, margin: int = 8) -> Tensor:
    """Random smooth images with nothing near their edges."""
    x = torch.zeros(count, 1, size, size)
    inside = torch.rand(count, 1, size - 2 * margin, size - 2 * margin, generator=torch.Generator().manual_seed(0))
    x[..., margin:-margin, margin:-margin] = inside
    return wafl.shifts.blur(severity=1.0, bounds=None).apply(x)


def drawn(**parts: float) -> Tensor:
    values = [parts.get(name, 0.0) for name in ("down", "right", "larger", "turn")]
    return torch.tensor([values]).expand(5, -1)


def test_images_move_by_whole_pixels() -> None:
    x = images()
    assert torch.allclose(placed(x, drawn()), x, atol=1e-6)
    assert torch.allclose(placed(x, drawn(down=0.5)), x.roll(1, 2), atol=1e-5)
    assert torch.allclose(placed(x, drawn(right=-1.0)), x.roll(-2, 3), atol=1e-5)


def test_images_turn_as_a_rotation_does() -> None:
    x = images()
    turned = wafl.shifts.rotation(severity=15.0 / 90.0, bounds=None).apply(x)
    assert torch.allclose(placed(x, drawn(turn=1.0)), turned, atol=1e-5)
    assert not torch.allclose(placed(x, drawn(turn=-1.0)), turned, atol=0.05)


def test_an_image_grows_by_the_factor() -> None:
    """The mass of an image grows by the square of the zoom."""
    x = images()
    growth = placed(x, drawn(larger=1.0)).sum((1, 2, 3)) / x.sum((1, 2, 3))
    assert torch.allclose(growth, torch.full((5,), 1.25**2), rtol=0.02)


def test_each_image_moves_by_a_draw_of_its_own() -> None:
    x, shift = images(), Placement(1.0, bounds=None)
    moved = shift.apply(x, seed=3)
    assert torch.equal(shift.apply(x[[4, 1]], seed=3, rows=torch.tensor([4, 1])), moved[[4, 1]])
    assert not torch.allclose(moved, shift.apply(x, seed=4), atol=0.01)
    same = shift.apply(x[:1].expand(5, -1, -1, -1), seed=3)
    assert len({round(float(each), 4) for each in same.square().sum((1, 2, 3))}) == 5
    assert torch.equal(Placement(0.0).apply(x), x)
    assert (
        Placement(1.0)
        .describe("pixel")
        .startswith("images moved by up to 2 pixels, zoomed by up to 1.25, turned by up to 15")
    )


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(ValueError, match="placement moves images"):
        Placement(1.0).apply(torch.ones(2, 5))


def test_the_shape_makes_such_moves_cheap() -> None:
    x = images(40, 8, 2)
    factor = cost_matrix_of(x).matrix.numpy()
    moves = (Placement(1.0, bounds=None).apply(x) - x).flatten(1).double().numpy()
    spread = np.mean([np.outer(move, move) for move in moves], axis=0)
    expected = (1 - SHRINKAGE) * spread / spread.trace() * 64 + SHRINKAGE * np.eye(64)
    np.testing.assert_allclose(factor @ factor.T, expected, rtol=1e-6, atol=1e-9)
    directions = np.random.default_rng(0).normal(size=moves.shape)
    directions *= np.linalg.norm(moves, axis=1, keepdims=True) / np.linalg.norm(directions, axis=1, keepdims=True)
    price = [np.square(np.linalg.solve(factor, each.T)).sum(0).mean() for each in (moves, directions)]
    assert price[0] < 0.5 * price[1]


def test_the_ball_is_around_one_source() -> None:
    method = ball("turned_digits", 1, 0.5)
    run = wafl.fit(
        wafl.models.mlr(clients_of("turned_digits")), clients_of("turned_digits"), method, rounds=6, local_steps=2
    )
    assert method.client_weights.initial([3, 5]).tolist() == [0.0, 1.0]
    radius = run.history[-1].achieved_radius
    assert radius is not None
    assert radius > 0.0


def test_moved_images_are_of_one_source_or_of_all() -> None:
    assert augmented("turned_digits", 0).client_weights.initial([3, 5]).tolist() == [1.0, 0.0]
    assert augmented("turned_digits").client_weights.initial([3, 5]).tolist() == [0.5, 0.5]
    clients = clients_of("turned_digits")
    run = wafl.fit(wafl.models.mlr(clients), clients, augmented("turned_digits"), rounds=1, local_steps=1)
    assert run.history[0].achieved_radius is not None


def test_trials_of_domains_are_judged_on_moved_images() -> None:
    fair, paper = (files.read("tab-domains", protocol, "smoke")[0] for protocol in ("fair", "paper"))
    assert (fair.judged, paper.judged) == ("placement", None)
