"""Secants and strips of activations hold what a dense grid finds, and not much more."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from wafl.theory.networks.activations import KNOWN, Straight


@pytest.mark.parametrize("kind", [*KNOWN, nn.Identity])
def test_secants_and_strips_hold_a_dense_grid(kind: type[nn.Module]) -> None:
    f, ours = kind(), KNOWN.get(kind, Straight())
    center = torch.linspace(-4.0, 4.0, 41, dtype=torch.float64)[:, None].expand(41, 30).reshape(-1)
    width = torch.logspace(-3, 1.5, 30, dtype=torch.float64).repeat(41)
    p = center[:, None] + width[:, None] * torch.linspace(-1.0, 1.0, 400, dtype=torch.float64)
    run, rise = p - center[:, None], f(p) - f(center)[:, None]
    secant = rise / run
    low, high = ours.secants(center, ours.turn(center), width)
    ends = torch.stack([low[:, None] * run, high[:, None] * run])
    assert bool((rise >= ends.amin(0) - 1e-14).all())
    assert bool((rise <= ends.amax(0) + 1e-14).all())
    # Exact but for the grid, for where a tangent is found by bisection, and for the last bits of short secants.
    assert float((secant.amin(1) - low).abs().max()) < 1e-9
    assert float((high - secant.amax(1)).max()) < 5e-3
    strip = ours.strip(center, width)
    rest = rise - strip.slope[:, None] * run
    assert bool((rest >= strip.low[:, None] - 1e-12).all())
    assert bool((rest <= strip.high[:, None] + 1e-12).all())
    assert float((rest.amin(1) - strip.low).max()) < 2e-3 * float(width.max())
    assert float((strip.high - rest.amax(1)).max()) < 2e-3 * float(width.max())


@pytest.mark.parametrize("kind", KNOWN)
@pytest.mark.parametrize("width", [1e2, 1e8, 1e16, 1e30, 1e80])
def test_strips_of_any_width_hold_what_is_near_the_center(kind: type[nn.Module], width: float) -> None:
    f, ours = kind(), KNOWN[kind]
    center = torch.linspace(-3.0, 3.0, 13, dtype=torch.float64)
    run = torch.linspace(-60.0, 60.0, 2001, dtype=torch.float64)
    strip = ours.strip(center, torch.full_like(center, width))
    rest = f(center[:, None] + run) - f(center)[:, None] - strip.slope[:, None] * run
    room = 1e-14 * (1.0 if kind is not nn.ReLU else width)
    assert bool((rest >= strip.low[:, None] - room).all())
    assert bool((rest <= strip.high[:, None] + room).all())


@pytest.mark.parametrize("kind", KNOWN)
def test_inputs_that_do_not_move_stay_where_they_are(kind: type[nn.Module]) -> None:
    center = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    strip = KNOWN[kind].strip(center, torch.zeros_like(center))
    assert not strip.low.any()
    assert not strip.high.any()
    low, high = KNOWN[kind].secants(center, KNOWN[kind].turn(center), torch.zeros_like(center))
    assert bool((low.isfinite() & high.isfinite() & (low <= high)).all())
