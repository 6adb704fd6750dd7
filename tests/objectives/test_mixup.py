"""Mixup: the distribution of its weights, and whom an example is mixed with."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from wafl.base.random import Key, Purpose, uniform
from wafl.objectives import ObjectiveState, mixup
from wafl.objectives.augmented import symmetric_beta
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0, 4.0])
def test_the_weights_have_the_beta_distribution(alpha: float) -> None:
    draws = uniform(Key.of(3), Purpose.START, 40_000).view(-1, 2)
    values = symmetric_beta(torch.full((len(draws),), alpha, dtype=torch.float64), draws)
    assert stats.kstest(values.numpy(), stats.beta(alpha, alpha).cdf).pvalue > 0.01


@pytest.mark.parametrize("alpha", [1e-6, 1e6])
def test_extreme_weights_are_finite(alpha: float) -> None:
    draws = torch.tensor([[0.0, 0.0], [1 - 2.0**-24, 0.25], [0.5, 0.75], [0.0, 0.5]], dtype=torch.float64)
    values = symmetric_beta(torch.full((4,), alpha, dtype=torch.float64), draws)
    assert bool(((values >= 0) & (values <= 1)).all())


@pytest.mark.parametrize("regression", [False, True])
def test_examples_are_mixed_with_others_of_their_own_batch_and_never_with_padding(regression: bool) -> None:
    """Examples are unit vectors, so that a mixture tells who is in it and how much."""
    room, real = 8, (8, 5)
    task = make_task(nn.Linear(room, 3).double(), "squared_error" if regression else "cross_entropy")
    clients = torch.tensor([4, 9])
    key = Key(*(torch.full_like(clients, value) for value in (7, 3)), clients, torch.zeros_like(clients))
    weight = torch.stack([torch.arange(room) < count for count in real]).double()
    state = ObjectiveState({"alpha": torch.tensor([1.0, 0.5])}, key, weight / weight.sum(1, keepdim=True))
    x: Tensor = torch.eye(room, dtype=torch.float64).expand(2, -1, -1)
    y = torch.arange(2 * room).view(2, room) % 3
    y = torch.nn.functional.one_hot(y, 3).double() if regression else y
    problem = Problem(task, task.initial().expand(2, -1))
    move = mixup()(problem, x, y, state)
    for lane, count in enumerate(real):
        mixed = move.x_adv[lane, :count]
        assert not bool(mixed[:, count:].any()), "no example is mixed with padding"
        torch.testing.assert_close(mixed.sum(0)[:count], torch.ones(count).double())
        torch.testing.assert_close(mixed.sum(1), torch.ones(count).double())
        assert len({round(float(value), 9) for value in mixed.flatten()} - {0.0, 1.0}) == 2, "one weight per batch"
        alone = ObjectiveState({"alpha": state.scalars["alpha"][[lane]]}, Key(*(part[[lane]] for part in parts(key))))
        again = mixup()(Problem(task, problem.params[[lane]]), x[[lane], :count], y[[lane], :count], alone)
        torch.testing.assert_close(again.x_adv[0], mixed)
        torch.testing.assert_close(again.value[0], move.value[lane, :count])


def parts(key: Key) -> tuple[Tensor, ...]:
    return key.seed, key.round, key.client, key.step
