"""A ball with a cost matrix is a round ball in another space: of the model ``u -> model(A u)``, at ``u = A^-1 x``."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wafl
from tests.objectives.networks import FEATURES, MODELS, drawn
from wafl.objectives import CostMatrix, Wasserstein, client_cost_matrix
from wafl.objectives.ball.client_cost_matrix import class_means, cost_matrix_of_means
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task
from wafl.tasks.task import Task

GENERATOR = torch.Generator().manual_seed(5)
MATRIX = torch.eye(FEATURES, dtype=torch.float64) + 0.4 * torch.randn(
    FEATURES, FEATURES, generator=GENERATOR, dtype=torch.float64
)
BALL: dict[str, Any] = {"gamma": 3.0, "steps": 60, "bounds": None}
SCHEDULE: dict[str, Any] = {"rounds": 2, "local_steps": 2, "batch_size": 8, "learning_rate": 0.2}


class Stretched(nn.Module):
    """``u -> model(A u)``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, u: Tensor) -> Tensor:
        return self.model(u @ MATRIX.T)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{}, {"norm": math.inf}, {"norm": 1}, {"label_cost": 0.3}])
def test_the_move_is_that_of_a_round_ball_around_the_stretched_model(name: str, options: dict[str, Any]) -> None:
    model = MODELS[name]()
    problem, x, y, state = drawn(model)
    stretched: Task = make_task(Stretched(model).double(), "cross_entropy")
    plain = Wasserstein(**BALL, **options)(
        Problem(stretched, problem.params), torch.linalg.solve(MATRIX, x.mT).mT.contiguous(), y, state
    )
    move = Wasserstein(**BALL, **options, cost_matrix=MATRIX.numpy())(problem, x, y, state)
    torch.testing.assert_close(move.x_adv, plain.x_adv @ MATRIX.T, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(move.value, plain.value, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(move.cost, plain.cost, rtol=1e-2, atol=1e-3)
    assert torch.equal(move.y_adv, plain.y_adv)
    assert state.weight is not None
    wanted = problem.descent(move.x_adv, move.y_adv, state.weight)
    torch.testing.assert_close(move.descent(problem, state.weight), wanted, rtol=1e-9, atol=1e-10)


def digits() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=4, seed=0)


def weights(run: wafl.Run) -> Tensor:
    return run.params["1.weight"]


@pytest.mark.parametrize("power", [1, 2])
def test_training_by_radius_keeps_to_the_radius_in_the_shape(power: int) -> None:
    clients = digits()
    method = wafl.WAFL(radius=0.5, cost_matrix="clients", power=power)
    run = wafl.fit(wafl.models.mlr(clients), clients, method, rounds=12, local_steps=2, learning_rate=0.2)
    assert run.history[-1].achieved_radius == pytest.approx(0.5, rel=0.2)
    assert "CostMatrix(64 features" in run.settings["method"]["objective"]["cost_matrix"]


def test_a_sweep_gives_the_runs_one_by_one_and_the_shape_of_clients_is_that_of_their_class_means() -> None:
    clients = digits()
    model, train = wafl.models.mlr(clients), clients.train
    owner = torch.repeat_interleave(torch.arange(4), train.num_examples)
    between = client_cost_matrix(train.x, train.y, owner)
    first, second = wafl.sweep(model, clients, wafl.WAFL(gamma=1.0), {"cost_matrix": ["clients", None]}, **SCHEDULE)
    given = wafl.fit(model, clients, wafl.WAFL(gamma=1.0, cost_matrix=between), **SCHEDULE)
    assert torch.equal(weights(first), weights(given))
    assert torch.equal(weights(second), weights(wafl.fit(model, clients, wafl.WAFL(gamma=1.0), **SCHEDULE)))
    assert not torch.equal(weights(first), weights(second))


def projected(between: np.ndarray) -> np.ndarray:
    """Return the nearest positive semidefinite matrix with the same trace, by bisection."""
    values, vectors = np.linalg.eigh(between)
    low, high = values.min() - values.sum(), values.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(values - middle, 0).sum() > values.sum() else (low, middle)
    return vectors @ np.diag(np.maximum(values - low, 0)) @ vectors.T


Half = dict[tuple[int, int], tuple[np.ndarray, np.ndarray, int]]
"""By class and client: the means of the first and the second half, and the number of examples."""


def halves(x: np.ndarray, y: np.ndarray, owner: np.ndarray) -> Half:
    result: Half = {}
    for label in np.unique(y):
        for client in np.unique(owner):
            rows = x[(y == label) & (owner == client)]
            if len(rows) > 1:
                cut = -(-len(rows) // 2)
                result[label, client] = (rows[:cut].mean(0), rows[cut:].mean(0), len(rows))
    return result


def centers(means: Half) -> dict[int, tuple[np.ndarray, np.ndarray, int]]:
    """By class, the means over clients and the number of examples."""
    result: dict[int, tuple[np.ndarray, np.ndarray, int]] = {}
    for label in {label for label, _ in means}:
        rows = [each for (other, _), each in means.items() if other == label]
        total = sum(count for _, _, count in rows)
        first, second = (np.sum([each[2] * each[half] for each in rows], axis=0) / total for half in (0, 1))  # pyright: ignore
        result[label] = (first, second, total)
    return result


def parts_of(means: Half) -> tuple[dict[int, np.ndarray], float]:
    """The sum of each client's products of differences, and V."""
    middle, parts, total = centers(means), dict[int, np.ndarray](), 0.0
    for (label, client), (first, second, count) in means.items():
        gap = count * np.outer(first - middle[label][0], second - middle[label][1])
        parts[client] = parts.get(client, 0.0) + (gap + gap.T) / 2
        total += count - count**2 / middle[label][2]
    return parts, total


def slow_cost_matrix(x: np.ndarray, y: np.ndarray, owner: np.ndarray, least_round: float = 0.1) -> np.ndarray:
    """Return ``A A^T`` by its definition, client by client."""
    means, features = halves(x, y, owner), x.shape[1]
    parts, total = parts_of(means)
    between = sum(parts.values()) / total
    shares = {client: sum(n for (_, c), (_, _, n) in means.items() if c == client) for client in parts}
    everything = sum(shares.values())
    error = sum(np.square(part / total - shares[client] / everything * between).sum() for client, part in parts.items())
    spread = np.square(between).sum() - np.trace(between) ** 2 / features
    weight = min(1.0, max(least_round, len(parts) / (len(parts) - 1) * error / spread))

    def shape(some: Half) -> np.ndarray:
        inner, size = parts_of(some)
        nearest = projected(np.sum(list(inner.values()), axis=0) / size)
        return (1 - weight) * nearest * features / np.trace(nearest) + weight * np.eye(features)

    distance = count = 0.0
    for left_out in parts:
        others = {key: each for key, each in means.items() if key[1] != left_out}
        middle, inverse = centers(others), np.linalg.inv(shape(others))
        for (label, client), (first, second, size) in means.items():
            if client == left_out and label in middle:
                distance += size * (first - middle[label][0]) @ inverse @ (second - middle[label][1])
                count += size
    return distance / count * shape(means)


@pytest.mark.parametrize("features", [3, 40])
def test_the_shape_of_clients_is_that_of_a_slow_loop(features: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, features, generator=generator, dtype=torch.float64)
    y, owner = (torch.randint(high, (80,), generator=generator) for high in (2, 5))
    x[:, 0] += 3.0 * owner  # clients differ along the first feature
    x[:, 1] += owner % 2
    matrix = client_cost_matrix(x, y, owner)
    wanted = slow_cost_matrix(x.numpy(), y.numpy(), owner.numpy())
    np.testing.assert_allclose((matrix.matrix @ matrix.matrix.T).numpy(), wanted, rtol=1e-8, atol=1e-8)
    assert wanted[0, 0] > 4 * wanted[2, 2]
    assert "left-out client" in str(matrix)


def distances(num_clients: int, features: int, seed: int, examples: int = 20) -> tuple[float, float]:
    """Return the mean squared distances of new clients, and of those that gave the shape, without noise."""
    random, directions, classes = np.random.default_rng(seed), 5, 3
    ways, middle = random.normal(size=(features, directions)), random.normal(size=(classes, features))

    def clients(count: int) -> np.ndarray:
        return middle + random.normal(size=(count, classes, directions)) @ ways.T

    trained = clients(num_clients)
    x = trained[:, :, None] + random.normal(size=(num_clients, classes, examples, features))
    owner, y, _ = np.indices(x.shape[:3])
    given = (x.reshape(-1, features), y.ravel(), owner.ravel())
    matrix = client_cost_matrix(*(torch.from_numpy(each.copy()) for each in given)).matrix.numpy()

    def mean_square(means: np.ndarray) -> float:
        gaps = (means - trained.mean(0)).reshape(-1, features)
        return float(np.square(np.linalg.solve(matrix, gaps.T)).sum(0).mean())

    return mean_square(clients(200)), mean_square(trained)


@pytest.mark.parametrize(
    ("num_clients", "features", "draws", "tolerance"), [(10, 50, 40, 0.15), (30, 8, 20, 0.1), (10, 1000, 1, 0.5)]
)
def test_a_new_client_is_at_distance_one(num_clients: int, features: int, draws: int, tolerance: float) -> None:
    """The mean over draws has standard errors of 0.024, 0.016 and 0.14."""
    new, old = np.transpose([distances(num_clients, features, seed) for seed in range(draws)])
    assert new.mean() == pytest.approx(1.0, abs=tolerance)
    assert old.mean() < 0.95 * new.mean(), "the clients that gave the shape seem nearer than a new one"


def test_few_noisy_examples_do_not_make_clients_differ() -> None:
    """Without the halves, the noise of the means would be half of the differences that the estimate sees."""
    generator = torch.Generator().manual_seed(1)
    y, owner = torch.zeros(8000, dtype=torch.int64), torch.arange(2000).repeat_interleave(4)
    x = torch.randn(8000, 2, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 4.0])
    x += torch.randn(2000, 1, generator=generator, dtype=torch.float64)[owner] * torch.tensor([1.0, 1.0])
    square = client_cost_matrix(x, y, owner).matrix
    square = square @ square.T
    assert float(square[0, 1] / square[0, 0]) == pytest.approx(0.9, abs=0.1)
    assert float(square[1, 1] / square[0, 0]) == pytest.approx(1.0, abs=0.2)


def test_noise_that_is_drawn_for_each_half_cancels() -> None:
    """As from clients that add noise to what they send, in proportion to their number of examples."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4000, 2, generator=generator, dtype=torch.float64)
    y, owner = torch.zeros(4000, dtype=torch.int64), torch.arange(400).repeat_interleave(10)
    x[:, 0] += torch.randn(400, generator=generator, dtype=torch.float64)[owner]
    x[:, 1] += 0.5 * torch.randn(400, generator=generator, dtype=torch.float64)[owner]
    exact = class_means(x, y, owner)
    noise = torch.randn(exact.means.shape, generator=generator, dtype=torch.float64)
    for means in (exact, replace(exact, means=exact.means + noise)):
        square = cost_matrix_of_means(means).matrix
        square = square @ square.T
        assert float(square[1, 1] / square[0, 0]) == pytest.approx(0.25, abs=0.15), "with the noise it would be 0.63"


@pytest.mark.filterwarnings("ignore::wafl.base.errors.ConcavityWarning")
@pytest.mark.parametrize("power", [1, 2])
def test_ten_clients_in_a_thousand_dimensions_train_in_their_own_ball(power: int) -> None:
    random = np.random.default_rng(0)
    middle, ways = random.normal(size=(3, 1000)), random.normal(size=(1000, 5))
    centers = middle + random.normal(size=(10, 3, 5)) @ ways.T
    y = np.arange(3).repeat(10)
    pairs = [(means[y] + random.normal(size=(30, 1000)), y) for means in centers]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0.0, num_classes=3)
    method = wafl.WAFL(radius=0.5, cost_matrix="clients", power=power)
    run = wafl.fit(wafl.models.mlr(clients), clients, method, rounds=5, local_steps=2, learning_rate=0.001)
    assert run.history[-1].achieved_radius > 0.01
    train = clients.train
    assert float((run.model(train.x.float()).argmax(1) == train.y).float().mean()) > 0.7, "guessing has a third"


class Convolutional(nn.Module):
    """Layers that are no plain sequence, and normalize."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Conv2d(1, 3, 3, stride=2), nn.GroupNorm(1, 3), nn.Linear(27, 10)
        self.features = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(torch.relu(self.norm(self.first(x)))))


def turned() -> wafl.Federation:
    turns = [wafl.shifts.rotation(severity=angle / 90) for angle in (0, 15, 30, 45)]
    return wafl.load_dataset("digits").partition(num_clients=8, iid=True, skew=turns, seed=0)


def by_hand(model: nn.Module, layer: str, clients: wafl.Federation) -> CostMatrix:
    """Return the cost matrix of a layer's outputs, each client's computed alone."""
    outputs: list[Tensor] = []
    dict(model.named_modules())[layer].register_forward_hook(lambda *arguments: outputs.append(arguments[2]))
    train = clients.train
    with torch.no_grad():
        for client in range(clients.num_clients):
            for x in train.of(client)[0].split(256):
                model.eval()(x)
    owner = torch.repeat_interleave(torch.arange(clients.num_clients), train.num_examples)
    return client_cost_matrix(torch.cat(outputs), train.y, owner)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "sequence": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10)), "2"),
    "module": (Convolutional, "features"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_shape_of_clients_at_a_layer_is_that_of_its_outputs_where_training_starts(name: str) -> None:
    """To the last bit, whatever model is passed in and whatever parameters it starts from."""
    clients = turned()
    make, layer = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = make()
    first = wafl.fit(net, clients, wafl.FedAvg(), **SCHEDULE)
    options: dict[str, Any] = {"radius": 0.5, "space": layer}
    method = wafl.WAFL(**options, cost_matrix="clients")
    run = wafl.fit(first.module, clients, method, **SCHEDULE)
    from_params = wafl.fit(net, clients, method, init=first.params, **SCHEDULE)
    between = by_hand(copy.deepcopy(first.module), layer, clients)
    given, plain = (
        wafl.fit(first.module, clients, wafl.WAFL(**options, cost_matrix=matrix), **SCHEDULE)
        for matrix in (between, None)
    )
    for key, value in run.params.items():
        assert torch.equal(value, given.params[key])
        assert torch.equal(value, from_params.params[key])
    assert not all(torch.equal(value, plain.params[key]) for key, value in run.params.items())
    text = run.settings["method"]["objective"]["cost_matrix"]
    assert text.endswith(f"from the others' at layer '{layer}' of the starting model)"), text


def test_a_layer_at_which_clients_do_not_differ_asks_for_a_trained_model() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
    nn.init.constant_(net[1].bias, -100.0)
    with pytest.raises(ValueError, match=r"all clients at layer '2' of the starting.*train the model first and start"):
        wafl.fit(net, digits(), wafl.WAFL(radius=0.5, space="2", cost_matrix="clients"), **SCHEDULE)
    with pytest.raises(ValueError, match=r"space='4' is not a layer of the model, which has: 0, 1, 2, 3"):
        wafl.fit(net, digits(), wafl.WAFL(radius=0.5, space="4", cost_matrix="clients"), **SCHEDULE)


def test_a_shape_at_a_layer_is_that_of_its_outputs() -> None:
    problem, x, y, state = drawn(MODELS["layers"]())
    plain = Wasserstein(gamma=3.0 / 4.0, space="1")(problem, x, y, state)
    move = Wasserstein(gamma=3.0, space="1", cost_matrix=[2.0] * 7)(problem, x, y, state)
    torch.testing.assert_close(move.x_adv, plain.x_adv, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"cost_matrix": "round"},
            r"cost_matrix='round' must be 'clients', a square matrix, or one number per feature",
        ),
        ({"cost_matrix": [[1.0, 2.0]]}, r"cost_matrix has the shape \(1, 2\): it must be 'clients'"),
        ({"cost_matrix": ["a"]}, "cost_matrix must be 'clients', a square matrix"),
        ({"cost_matrix": [1.0, 0.0]}, "cost_matrix holds 0: how far a feature may move must be positive"),
        ({"cost_matrix": [[1.0, 1.0], [1.0, 1.0]]}, "cost_matrix is singular"),
        ({"cost_matrix": [1.0, math.inf]}, "cost_matrix holds NaN or infinity"),
        ({"cost_matrix": [1.0], "bounds": (0, 1)}, "are for a round ball"),
    ],
)
def test_a_wrong_shape_is_refused_with_what_it_must_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wafl.WAFL(gamma=1.0, **options)


def test_a_shape_for_other_features_is_refused_before_any_work() -> None:
    clients = digits()
    with pytest.raises(ValueError, match="cost_matrix is for 3 features, and an example has 64"):
        wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(cost_matrix=[1.0] * 3), **SCHEDULE)


def test_a_default_gamma_is_reported_in_the_unit_of_its_ball() -> None:
    clients = digits()
    with pytest.warns(wafl.RadiusWarning, match="matrix of the ball: 1 is the distance of a left-out client") as caught:
        wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(cost_matrix="clients"), **SCHEDULE)
    assert "auto" not in str(caught[0].message), "it is for round balls"
    unit = r"units of the output of layer '0', over the cost matrix.*others' at layer '0' of the starting model"
    with pytest.warns(wafl.RadiusWarning, match=unit):
        wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(cost_matrix="clients", space="0"), **SCHEDULE)


def test_clients_that_do_not_differ_have_no_shape() -> None:
    x, y = torch.ones(6, 2), torch.tensor([0, 1] * 3)
    with pytest.raises(ValueError, match="the classes have the same means at all clients"):
        client_cost_matrix(x, y, torch.tensor([0, 0, 1, 1, 2, 2]))
    x[:4] = torch.arange(4.0)[:, None]
    with pytest.raises(ValueError, match="or no three clients have the same class"):
        client_cost_matrix(x[:4], torch.zeros(4), torch.tensor([0, 0, 1, 1]))


def test_without_clients_the_shape_must_be_given() -> None:
    problem, x, y, _ = drawn(MODELS["linear"]())
    with pytest.raises(ValueError, match="cost_matrix='clients' needs clients, and there are none here"):
        Wasserstein(gamma=1.0, cost_matrix="clients")(problem, x, y)
