"""Noise in every local step: against a plain loop, against an integral, and against an attacker with a canary."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import wafl
from wafl.local import Prox
from wafl.objectives import Move, Objective, ObjectiveState, fgsm, mixup, wasserstein
from wafl.parts.messages import Query
from wafl.parts.schedule import Schedule
from wafl.tasks.fitness import check_fitness
from wafl.tasks.inputs import dense
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task
from wafl.train.client_task import ClientTask
from wafl.train.lanes.lanes import Lanes
from wafl.train.privacy import noise, records
from wafl.train.privacy.accountant import epsilon_of
from wafl.train.privacy.records import RecordPrivacy, Units, private_update

FEATURES, CLASSES, SIZE, CLIP = 5, 3, 12, 0.5
PRIVACY = RecordPrivacy(2.0, 1e-5, CLIP, 10)
LIBERAL = RecordPrivacy(1e5, 1e-5, CLIP, 10)
"""With a fine grid, for comparisons without noise."""
LONG = replace(LIBERAL, clip_norm=2.0)
"""Longer than the gradients of some units."""
DRAWS = np.random.default_rng(3)
X = DRAWS.normal(size=(SIZE, FEATURES)).astype(np.float32)
Y = np.arange(SIZE) % CLASSES
EACH = Units(0, torch.arange(SIZE))
PATIENTS = Units(0, torch.tensor([0, 2, 1, 1, 0, 2, 2, 3, 3, 4, 4, 4]))


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "gaussian", lambda count: torch.zeros(count, dtype=torch.float64))


def linear() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES))
    nn.init.zeros_(model[1].weight)  # type: ignore[arg-type]
    nn.init.zeros_(model[1].bias)  # type: ignore[arg-type]
    return model


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, CLASSES))


def make(x: Any = X, y: Any = Y, module: nn.Module | None = None, **options: Any) -> tuple[ClientTask, Tensor]:
    federation = wafl.Federation.from_arrays([(x, y)], test_fraction=0.0, num_classes=CLASSES)
    task = make_task(module or linear(), "cross_entropy", torch.device("cpu"))
    check_fitness(Problem(task, task.initial()[None]), torch.zeros(1, 1, FEATURES), torch.zeros(1, 1).long(), CLASSES)
    schedule = Schedule(rounds=1, local_steps=options.pop("steps", 1), batch_size=4)
    return ClientTask(task, options.pop("objective", None), schedule.local_work, federation.train, **options), (
        task.initial()
    )


def query(params: Tensor, **scalars: float) -> Query:
    plain = {"learning_rate": 0.5, "momentum": 0.0, "weight_decay": 0.0}
    return Query("train", 0, 0, (0,), torch.ones(1), params, {**plain, **scalars})


def reference(
    units: Units, clip: float, steps: int, momentum: float, decay: float, mu: float, longest: float
) -> np.ndarray[Any, Any]:
    """Algorithm 1 of Abadi et al. with all units in each step, for a linear model, unit by unit."""
    x, owner = np.hstack([X, np.ones((SIZE, 1))]).astype(float), units.owner.numpy()
    theta, velocity = np.zeros((CLASSES, FEATURES + 1)), 0.0
    for _ in range(steps):
        total = np.zeros_like(theta)
        for unit in range(owner.max() + 1):
            gradient = np.zeros_like(theta)
            for i in np.flatnonzero(owner == unit):
                scores = np.exp(theta @ x[i])
                gradient += np.outer(scores / scores.sum() - np.eye(CLASSES)[Y[i]], x[i]) / (owner == unit).sum()
            total += gradient * min(1.0, clip / np.linalg.norm(gradient))
        gradient = total / (owner.max() + 1) + decay * theta
        velocity = momentum * velocity + gradient + mu * theta  # training starts at zero
        theta = theta - 0.5 * velocity
    theta *= min(1.0, longest / np.linalg.norm(theta))
    return np.concatenate([theta[:, :-1].ravel(), theta[:, -1]])


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("units", [EACH, PATIENTS], ids=["records", "patients"])
@pytest.mark.parametrize("privacy", [LIBERAL, LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    ("steps", "momentum", "decay", "mu", "longest"),
    [(1, 0.0, 0.0, 0.0, 1e9), (4, 0.5, 0.1, 0.3, 1e9), (3, 0.0, 0.0, 0.0, 0.05)],
)
def test_without_noise_the_steps_are_those_of_a_plain_loop(
    units: Units, privacy: RecordPrivacy, steps: int, momentum: float, decay: float, mu: float, longest: float
) -> None:
    client, start = make(steps=steps, local=Prox(mu))
    numbers = {"momentum": momentum, "weight_decay": decay, "mu": mu, "clip_norm": longest}
    trained = private_update(client, query(start, **numbers), units, privacy)
    expected = reference(units, privacy.clip_norm, steps, momentum, decay, mu, longest)
    np.testing.assert_allclose(trained.numpy(), expected, rtol=0, atol=2e-6)
    other = reference(EACH if units is PATIENTS else PATIENTS, privacy.clip_norm, steps, momentum, decay, mu, longest)
    assert not np.allclose(other, expected, atol=1e-3)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("objective", [wasserstein(gamma=1.0), fgsm(epsilon=0.3)])
def test_an_objective_moves_each_record_as_if_it_were_alone(objective: Objective) -> None:
    """The mean of clipped gradients equals the mean of clients with one record each, which train without noise."""
    client, start = make(module=network(), objective=objective)
    params = start + 0.1
    moves = list[Tensor]()
    for row in range(SIZE):
        alone, _ = make(X[row : row + 1], Y[row : row + 1], network(), objective=objective)
        one = replace(query(params, **objective.scalars()), clients=(0,))
        # A dropout's mask follows from the record's number.
        (reply,) = Lanes(alone, rows={row: 0}).run([replace(one, clients=(row,))])
        moves.append((params - reply.params[0]) / 0.5)
    clipped = [move * min(1.0, CLIP / float(move.norm())) for move in moves]
    moved = (params - private_update(client, query(params, **objective.scalars()), EACH, LIBERAL)) / 0.5
    torch.testing.assert_close(moved, torch.stack(clipped).mean(0), rtol=0, atol=5e-6)


# -- One record changes the sum by at most 2 C -------------------------------------------------------------------------


class Fragile(Objective):
    """An objective that cannot be computed for some examples."""

    def __call__(self, problem: Problem, x: Any, y: Tensor, state: ObjectiveState | None = None) -> Move:
        if float(dense(x).abs().max()) > 50.0:
            raise ArithmeticError("too large")
        losses = problem.loss(x, y)
        return Move(x, y, losses, torch.zeros_like(losses), torch.ones_like(losses, dtype=torch.bool))


@pytest.mark.parametrize("module", [linear, network])
@pytest.mark.parametrize(
    "objective",
    [None, wasserstein(gamma=0.2), wasserstein(gamma=0.2, norm=math.inf), mixup(), Fragile()],
    ids=["none", "l2", "linf", "mixup", "fragile"],
)
def test_one_unit_changes_the_sum_by_at_most_twice_the_clipping_norm(objective: Objective | None, module: Any) -> None:
    """Also if its gradient is infinite, is not a number, or cannot be computed at all."""
    scalars = {} if objective is None else objective.scalars()

    def clipped_sum(units: Units, x: Any) -> Tensor:
        client, params = make(x, Y, module(), objective=objective)
        return records.sum_of_units(client, query(params + 0.3, **scalars), units, 0, PRIVACY)

    for units, changes in ((EACH, (1e4,)), (PATIENTS, (1.0, 1e4, 3e38))):
        before = clipped_sum(units, X)
        for change in changes:
            other = X.copy()
            other[units.owner.numpy() == 2] = change * np.array([1, -1, 0.5, 0.3, -0.2], np.float32)
            after = clipped_sum(units, other)
            distance = float((before - after).norm()) * noise.GRID * PRIVACY.deviation
            assert 0.0 < distance <= 2.0 * CLIP * (1.0 + 1e-12)
            assert bool(torch.isfinite(after).all())


@pytest.mark.parametrize(
    "objective",
    [wasserstein(gamma=0.2, tolerance=1e-3), wasserstein(gamma=0.2, norm=math.inf), wasserstein(gamma=0.2, power=1)],
    ids=["tolerance", "linf", "price"],
)
@pytest.mark.parametrize("scale", [3.0, 1e9, 1e19])
def test_the_gradient_of_a_record_has_no_bit_of_another(objective: Objective, scale: float) -> None:
    """Records are moved together, and a bit of one in another's move could grow with crafted parameters."""

    def gradients(x: Any) -> Tensor:
        client, start = make(x, Y, linear(), objective=objective)
        params = scale * torch.randn(len(start), generator=torch.Generator().manual_seed(5))
        asked = query(params, **objective.scalars())
        return records._computable_gradients(client, asked, torch.arange(SIZE), 0, 0)

    others, before, moved = torch.arange(SIZE) != 7, gradients(X), list[bool]()
    for change in (0.0, 40.0, 3e38):
        x = X.copy()
        x[7] = change * np.array([1, -1, 0.5, 0.3, -0.2], np.float32)
        after = gradients(x)
        moved.append(not torch.equal(before[7], after[7]))
        torch.testing.assert_close(before[others], after[others], rtol=0, atol=0, equal_nan=True)
    assert any(moved)


def test_an_error_that_is_no_fault_of_an_example_is_raised() -> None:
    """So that no model is trained on noise alone because it does not fit."""
    client, params = make()
    records.check_computable(client, query(params))
    with pytest.raises(KeyError):
        records.check_computable(client, replace(query(params), scalars={}))


def test_sums_do_not_depend_on_the_order_of_rows() -> None:
    """So no last bit shows what was summed: all numbers are whole steps of the grid."""
    draws = np.random.default_rng(1)
    rows = torch.from_numpy(draws.normal(size=(500, 7)) * np.exp(draws.normal(size=(500, 1))))
    sums = [noise.clipped_sum(rows[torch.randperm(500)], 0.7, 3.0) for _ in range(5)]
    assert all(torch.equal(each, sums[0]) for each in sums)
    assert torch.equal(sums[0], sums[0].round())
    noised = noise.noisy(sums[0], 3.0) / (noise.GRID * 3.0)
    torch.testing.assert_close(noised, noised.round(), rtol=0, atol=1e-6)
    short = torch.stack([noise.clipped_sum(row[None], 0.7, 3.0) for row in rows]) * noise.GRID * 3.0
    assert float(short.norm(dim=1).max()) <= 0.7
    expected = (rows * (0.7 / rows.norm(dim=1, keepdim=True)).clamp_max(1.0)).sum(0)
    torch.testing.assert_close(short.sum(0), expected, rtol=0, atol=500 * noise.GRID * 3.0)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_gradient_that_is_not_finite_counts_as_zero(value: float) -> None:
    rows = torch.tensor([[0.1, 0.2], [value, 0.1], [0.3, -0.1], [value, value]])
    assert torch.equal(noise.clipped_sum(rows, 0.7, 3.0), noise.clipped_sum(rows[::2], 0.7, 3.0))
    huge = noise.clipped_sum(torch.tensor([[3e38, 0.0], [0.0, -3e38]]), 0.7, 3.0) * noise.GRID * 3.0
    torch.testing.assert_close(huge, torch.tensor([0.7, -0.7]).double(), rtol=0, atol=1e-5)


# -- The noise ---------------------------------------------------------------------------------------------------------


def test_lengths_of_pairs_are_dense_far_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A length that only one of two sums could have would show which it was, more often than a small delta allows."""

    def lengths(*words: tuple[int, int]) -> Tensor:
        """The lengths of pairs for 53 high and 53 low bits each; the angles are 0."""
        high, low = np.array(words, np.uint64).T << np.uint64(11)
        monkeypatch.setattr(noise.os, "urandom", lambda size: np.stack([high, low, 0 * high]).tobytes())
        return noise.gaussian(2 * len(words))[: len(words)]

    last = 2**53 - 1
    for high in (1, 7, 2**17):
        here, beside, end, next_one = lengths((high, 0), (high, 1), (high, last), (high + 1, 0)).tolist()
        assert here - next_one > noise.GRID, "53 bits would leave a gap"
        assert abs(here - beside) + abs(end - next_one) < 0.01 * noise.GRID
    farthest, nearest = lengths((0, 0), (last, last)).tolist()
    assert farthest == pytest.approx(math.sqrt(2.0 * 106.0 * math.log(2.0)))
    assert nearest == pytest.approx(0.0, abs=1e-7)


def test_noise_is_gaussian_and_follows_from_no_seed() -> None:
    draws = list[Tensor]()
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        draws.append(noise.gaussian(40_001))
    one, two = draws
    assert not torch.equal(one, two)
    assert stats.kstest(one.numpy(), "norm").pvalue > 1e-7
    half = one[:20_000], one[20_001:]
    assert abs(float(torch.corrcoef(torch.stack(half))[0, 1])) < 6.0 / math.sqrt(20_000), "Box and Muller's pairs"
    added = noise.noisy(torch.zeros(40_000, dtype=torch.float64), 2.5)
    assert stats.kstest(added.numpy() / 2.5, "norm").pvalue > 1e-7


# -- What it spends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta", "steps"), [(1.0, 1e-5, 20), (4.0, 1e-6, 1), (8.0, 1e-5, 300)])
def test_all_steps_together_spend_epsilon(epsilon: float, delta: float, steps: int) -> None:
    """By Renyi's divergence: an upper bound for Gaussian noise, and less than a fifth above what is exact."""
    privacy = RecordPrivacy(epsilon, delta, 1.0, steps)
    ratio = privacy.deviation / (2.0 * privacy.clip_norm)  # the sensitivity is twice the clipping norm
    assert epsilon_of(delta, ratio, steps) == pytest.approx(epsilon, rel=1e-9)
    orders = np.linspace(1.001, 200.0, 400_000)
    # Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy" (2020), proposition 12.
    divergence = steps * orders / (2.0 * ratio**2)
    bound = divergence + np.log1p(-1.0 / orders) - np.log(delta * orders) / (orders - 1.0)
    assert epsilon < bound.min() < 1.2 * epsilon


def lower_bound(privacy: RecordPrivacy, trials: int) -> float:
    """Return a lower bound on epsilon, from an attacker who knows all records but one and sees many noisy gradients.

    The record is one of two with nearly opposite gradients; the attacker looks at how far the model moves along them.
    Clopper and Pearson's intervals hold with probability 0.998. The threshold is chosen on one half of the trials.
    """
    x, sums = np.zeros((2, FEATURES), np.float32), list[Tensor]()
    x[1] = 40.0
    for label in (0, 1):
        client, start = make(x, np.array([2, label]))
        sums.append(records.sum_of_units(client, query(start), Units(0, torch.arange(2)), 0, privacy))
    along = sums[1] - sums[0]
    moved = [
        np.array([float(along @ noise.noisy(each, privacy.deviation)) for _ in range(trials)])
        for each in reversed(sums)
    ]
    half, error = trials // 2, 1e-3

    def bound(cut: float, part: slice) -> float:
        hits, misses = (int((each[part] > cut).sum()) for each in moved)
        low = stats.beta.ppf(error, hits, half - hits + 1) if hits else 0.0
        high = stats.beta.ppf(1.0 - error, misses + 1, half - misses) if misses < half else 1.0
        return math.log(max(low - privacy.delta, 1e-300) / high)

    cuts = np.quantile(np.concatenate(moved), np.linspace(0.2, 0.9, 15))
    return bound(max(cuts, key=lambda cut: bound(cut, slice(half))), slice(half, None))


def test_no_attacker_tells_two_records_apart_better_than_epsilon_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    privacy = RecordPrivacy(4.0, 1e-5, 1.0, 1)
    assert 0.1 < lower_bound(privacy, 6000) < privacy.epsilon, "the attack works, and not better than it may"
    draw = noise.gaussian
    monkeypatch.setattr(noise, "gaussian", lambda count: 0.1 * draw(count))
    assert lower_bound(privacy, 2000) > privacy.epsilon, "with a tenth of the noise"
