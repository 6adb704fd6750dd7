"""Random moves: as large as they say, of their shape, drawn for each example, and by the shifts that were given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wafl
from tests.oracles.reference import draw
from wafl import shifts
from wafl.base.random import Key
from wafl.objectives import Move, ObjectiveState, RandomMoves, moved
from wafl.tasks.inputs import Inputs
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task

SEED, ROUND, CLIENTS, STEP = 7, 3, (4, 9), 2
NUMBERS = 5 + 256
"""The purpose of the draws that choose an example's shift and number."""


def state_of(lanes: list[int] | None = None, **scalars: list[float]) -> ObjectiveState:
    clients = torch.tensor(CLIENTS if lanes is None else lanes)
    seed, number, step = (torch.full_like(clients, value) for value in (SEED, ROUND, STEP))
    key = Key(seed, number, clients, step)
    return ObjectiveState({name: torch.tensor(value) for name, value in scalars.items()}, key)


def move_of(objective: RandomMoves, x: Tensor | Inputs, state: ObjectiveState) -> Move:
    base, lanes = (x.base, x.lanes) if isinstance(x, Inputs) else (x, len(x))
    task = make_task(nn.Sequential(nn.Flatten(), nn.Linear(base[0, 0].numel(), 3)).to(base.dtype), "cross_entropy")
    y = torch.zeros(lanes, base.shape[1], dtype=torch.int64)
    return objective(Problem(task, task.initial().expand(lanes, -1)), x, y, state)


def images(batch: int = 6, size: int = 4) -> Tensor:
    return torch.rand(2, batch, 1, size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_the_noise_has_the_shape_of_the_ball_and_costs_its_radius_squared_on_average() -> None:
    matrix = torch.tensor([[2.0, 0.0, 0.0], [0.7, 0.5, 0.0], [-0.3, 0.2, 0.1]], dtype=torch.float64)
    x = torch.zeros(2, 10_000, 3, dtype=torch.float64)
    move = move_of(moved(noise=0.6, cost_matrix=matrix.numpy()), x, state_of())
    in_the_ball = torch.linalg.solve(matrix, move.x_adv[..., None])[..., 0]
    torch.testing.assert_close(move.cost, in_the_ball.square().sum(-1), rtol=1e-9, atol=1e-12)
    assert float(move.cost.mean()) == pytest.approx(0.36, rel=0.03)
    covariance = in_the_ball.flatten(0, 1).T.cov()
    four_standard_errors = 4 * 0.12 * (2 / 20_000) ** 0.5
    torch.testing.assert_close(covariance, 0.12 * torch.eye(3).double(), rtol=0, atol=four_standard_errors)


def test_noise_is_cut_off_at_the_bounds_and_its_cost_is_that_of_the_move() -> None:
    x = images()
    move = move_of(moved(noise=2.0, bounds=(0.0, 1.0)), x, state_of())
    assert 0.0 == float(move.x_adv.min()) < float(move.x_adv.max()) == 1.0
    torch.testing.assert_close(move.cost, (move.x_adv - x).flatten(2).square().sum(-1))
    assert move_of(moved(noise=2.0), x, state_of()).x_adv.min() < 0.0


@pytest.mark.parametrize("objective", [moved(), moved(shifts.occlusion(0.5)), moved(shifts.gaussian_noise(0.3))])
def test_draws_belong_to_an_example_a_lane_and_a_step(objective: RandomMoves) -> None:
    x = images()
    x[1] = x[0]
    both = move_of(objective, x, state_of()).x_adv
    assert len({tuple(each.tolist()) for each in (both - x).flatten(2).flatten(0, 1)}) == 12
    assert torch.equal(move_of(objective, x[1:, :4], state_of([9])).x_adv, both[1:, :4]), "neighbors and padding"
    state = state_of()
    assert state.key is not None
    later = ObjectiveState(state.scalars, state.key.at(STEP + 1))
    assert not torch.equal(move_of(objective, x, later).x_adv, both)


@pytest.mark.parametrize("given", [(), shifts.occlusion(0.5)])
def test_lanes_that_share_their_examples_share_their_draws(given: Any) -> None:
    x, objective = images(), moved(given, noise=1.0, bounds=None)
    shared = move_of(objective, Inputs(x, 4), state_of([4, 4, 9, 9], noise=[0.1, 0.2, 0.1, 0.2])).x_adv
    for lane, client, noise in ((0, 4, 0.1), (1, 4, 0.2), (2, 9, 0.1), (3, 9, 0.2)):
        alone = move_of(objective, x[[lane // 2]], state_of([client], noise=[noise])).x_adv
        assert torch.equal(shared[lane], alone[0])


def test_each_example_is_moved_by_one_of_the_shifts_as_the_example_of_its_number() -> None:
    x = images(40)
    given = [shifts.rotation(0.3), shifts.occlusion(0.5), shifts.rotation(0.0), shifts.gaussian_noise(0.2)]
    result = move_of(moved(given, bounds=None), x, state_of()).x_adv
    used: set[int] = set()
    for lane, client in enumerate(CLIENTS):
        words = draw(SEED, NUMBERS, ROUND, client, STEP, 80)
        for example in range(40):
            number, chosen = words[2 * example], words[2 * example + 1] * 4 // 2**32
            wanted = given[chosen].apply(x[lane, [example]], rows=torch.tensor([number]))[0]
            torch.testing.assert_close(result[lane, example], wanted)
            used.add(chosen)
    assert used == {0, 1, 2, 3}


def test_shifts_stay_in_the_box_that_the_data_declare() -> None:
    inverted = moved(shifts.inversion()).within((0.0, 2.0))
    x = images()
    torch.testing.assert_close(move_of(inverted, x, state_of()).x_adv, 2.0 - x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shifts": shifts.label_shift(0.5)}, "must be shifts that move examples, such as"),
        ({"shifts": ["rotation"]}, "shifts='rotation' must be shifts that move examples"),
        ({"shifts": shifts.blur(1.0), "cost_matrix": [1.0, 2.0]}, "cost_matrix= is for noise without shifts or bounds"),
        ({"cost_matrix": [1.0, 2.0], "bounds": (0, 1)}, "cost_matrix= is for noise without shifts or bounds"),
        ({"noise": 0.0}, "noise=0.0 must be positive and finite; without noise give shifts"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        moved(**options)


def test_the_shape_of_clients_is_found_from_them() -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=4, seed=0)
    method = wafl.Moved(noise=0.5, cost_matrix="clients")
    run = wafl.fit(wafl.models.mlr(clients), clients, method, rounds=2, local_steps=1)
    assert run.history[-1].achieved_radius == pytest.approx(0.5, rel=0.1)
    with pytest.raises(ValueError, match="needs clients, and there are none here"):
        move_of(moved(cost_matrix="clients"), images(), state_of())
