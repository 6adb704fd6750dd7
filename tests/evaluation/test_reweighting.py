"""Attacks that move no example but make some count for more: your own, not only the label shift."""

import numpy as np
import pytest
import torch

import wafl
from wafl.attacks import Attack


class Favor(Attack):
    """Only examples whose label (or target) is above a threshold count, twice as much for every second one."""

    def __init__(self, above, needs_classes=False):
        self.above, self.needs_classes = above, needs_classes

    def move(self, problem, population, seed=0):
        return population.x

    def weights(self, y, num_classes, seed=0):
        self.asked = (num_classes, seed)
        raw = (y.reshape(len(y)) > self.above) * torch.tensor([1.0, 2.0], dtype=torch.float64).repeat(len(y))[: len(y)]
        return raw / raw.sum()

    def describe(self, unit):
        return f"labels above {self.above}"


class Broken(Favor):
    def __init__(self, weights):
        super().__init__(0)
        self.wrong = weights

    def weights(self, y, num_classes, seed=0):
        return self.wrong(len(y))


def federation(regression):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 30, 3)).astype(np.float32)
    y = rng.normal(size=(4, 30)).astype(np.float32) if regression else rng.integers(3, size=(4, 30))
    return wafl.Federation.from_arrays(list(zip(x, y, strict=True)), test_fraction=0.5, seed=0)


@pytest.mark.parametrize("regression", [False, True], ids=["classes", "regression"])
@pytest.mark.parametrize("attacked", [0.5, 1.0])
def test_your_own_attack_reweights_the_attacked_examples(regression, attacked):
    clients, loss = federation(regression), "squared_error" if regression else "cross_entropy"
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1 if regression else 3)
    attack = Favor(0)
    score = wafl.evaluate(model, clients, attack=attack, attacked=attacked, loss=loss, seed=4)
    assert attack.asked == (None if regression else 3, 4)
    parts = [clients.test.of(index) for index in range(4)]
    victims = [index for index, client in enumerate(score.per_client) if client.attacked]
    total = sum(len(y) for _, y in parts)
    weights = (
        Favor(0)
        .weights(torch.cat([parts[index][1] for index in victims]), None)
        .split([len(parts[index][1]) for index in victims])
    )
    mass = sum(len(part) for part in weights) / total
    expected = 0.0
    for index, (x, y) in enumerate(parts):
        with torch.no_grad():
            outputs = model(x).double()
        if regression:
            losses = (outputs[:, 0] - y).square()
        else:
            losses = torch.nn.functional.cross_entropy(outputs, y, reduction="none")
        mine = weights[victims.index(index)] * mass if index in victims else torch.full((len(y),), 1.0 / total)
        assert score.per_client[index].weight == pytest.approx(float(mine.sum()), rel=1e-6)
        assert score.per_client[index].loss == pytest.approx(float(mine.double() @ losses / mine.sum()), rel=1e-5)
        expected += float(mine.double() @ losses)
    assert score.loss == pytest.approx(expected, rel=1e-5)


def test_a_comparison_reweights_as_an_evaluation_does():
    clients = federation(False)
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=1, local_steps=1)
    row = wafl.compare({"run": run}, clients, attacks=[Favor(0)], attacked=[0.5]).rows[0]
    alone = wafl.evaluate(run, clients, attack=Favor(0), attacked=0.5)
    for ours, theirs in zip(row.score.per_client, alone.per_client, strict=True):
        assert (ours.weight, ours.attacked) == (theirs.weight, theirs.attacked)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-6)


def test_your_own_attack_may_refuse_a_regression():
    clients = federation(True)
    with pytest.raises(ValueError, match="labels above 0: this attack needs classes, and this is a regression"):
        wafl.evaluate(torch.nn.Linear(3, 1), clients, attack=Favor(0, needs_classes=True), loss="squared_error")


@pytest.mark.parametrize(
    "weights",
    [
        lambda count: torch.full((count,), 1.0),
        lambda count: torch.full((count + 1,), 1.0 / (count + 1)),
        lambda count: torch.full((count, 1), 1.0 / count),
        lambda count: torch.tensor([2.0, -1.0] + [0.0] * (count - 2)),
        lambda count: torch.full((count,), float("nan")),
    ],
    ids=["not normalized", "one too many", "a column", "negative", "NaN"],
)
def test_weights_that_are_no_distribution_over_the_attacked_examples_are_refused(weights):
    clients = federation(False)
    with pytest.raises(ValueError, match=r"the attack's weights have shape .* one per attacked example"):
        wafl.evaluate(torch.nn.Linear(3, 3), clients, attack=Broken(weights))
