"""Shifts against attacks: separate code moves examples inside the ball, and counts scores above the threshold."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import nn

import wafl
from tests.sets.attack import NORMS, attack, random_model, rows_of
from wafl.data.examples import Examples
from wafl.sets.answers import Client, Scorer
from wafl.sets.scores import Margin, Residual
from wafl.sets.shifted import Shift
from wafl.sets.thresholds import for_example


def scored(model, x, y, score, norm):
    y = torch.tensor(y)
    examples = Examples(torch.tensor(x), y, torch.tensor([0, len(y)]))
    scorer = Scorer.of(model, Residual() if score == "residual" else Margin(), examples)
    return Client(scorer, examples.x, y, norm)


def draw_case(rng, hidden, score):
    features, size = int(rng.integers(1, 6)), int(rng.integers(1, 8 if hidden else 25))
    model = random_model(rng, score, features, hidden)
    x = rng.normal(size=(size, features))
    with torch.no_grad():
        outputs = model(torch.tensor(x)).numpy()
    y = outputs[:, 0] + rng.normal(size=size) if score == "residual" else outputs.argmax(1)
    if score == "margin":
        wrong = rng.random(size) < 0.15
        y = np.where(wrong, rng.integers(0, outputs.shape[1], size), y)
    threshold = float(np.quantile(rows_of(outputs, y, score), rng.uniform(0.3, 1.0)) + rng.uniform(0.0, 1.0))
    return model, x, y, threshold


@pytest.mark.parametrize(("score", "hidden"), list(product(("margin", "residual"), (False, True))))
def test_no_attack_moves_more_scores_above_a_threshold_than_is_certified(score, hidden):
    """400 models in all; for linear ones the attack reaches what is certified, up to a part of one example."""
    rng = np.random.default_rng(2 * hidden + (score == "residual"))
    reached_some = 0
    for row in range(100):
        norm, power = NORMS[row % 3], 1 + row % 2
        case = draw_case(rng, hidden, score)
        radius = float(rng.choice([0.01, 0.1, 0.3, 1.0]))
        client = scored(*case[:3], score, norm)
        certified = client.above(case[3], Shift(radius, norm, power))
        reached = attack(case, score, norm, radius, power, hidden)
        reached_some += reached > client.above(case[3])
        assert reached <= certified
        if not hidden:
            assert certified < reached + 1.0 + 1e-3
        priced = Shift(radius, norm, power, gamma=float(rng.choice([0.1, 1.0, 10.0])))
        assert reached <= client.above(case[3], priced) + len(case[1]) * priced.spent * (1.0 + 1e-12)
    assert reached_some > 10, "the attack does something"


def test_the_worst_share_is_that_of_a_linear_program():
    """Mass of each example may stay, or move to above the threshold at a cost; a linear program finds the most."""
    rng = np.random.default_rng(0)
    for size, power in ((1, 2), (4, 1), (30, 2)):
        distance = np.where(rng.random(size) < 0.2, 0.0, rng.exponential(size=size))
        for radius in (0.05, 0.5, 2.0):
            program = linprog(-np.ones(size) / size, (distance**power)[None] / size, [radius**power], bounds=(0.0, 1.0))
            count = Shift(radius, 2, power).count(torch.tensor(distance))
            assert count / size == pytest.approx(-program.fun, rel=1e-6, abs=1e-9)
            for gamma in (0.1, 1.0, 30.0):
                shift = Shift(radius, 2, power, gamma)
                assert shift.count(torch.tensor(distance)) / size + shift.spent >= -program.fun - 1e-9


def test_ties_with_the_threshold_count_as_above_after_a_shift():
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(1.0)
    client = scored(model, np.zeros((4, 1)), np.array([1.0, 1.0, 1.0, 0.0]), "residual", 2)
    assert client.above(1.0) == 0
    assert client.above(1.0, Shift(1e-6)) >= 3.0


def worlds(rng, num_clients, size):
    """Clients around centers of their own, labeled by a linear rule with noise."""
    pairs = []
    for _ in range(num_clients):
        x = rng.normal(size=2) + 0.7 * rng.normal(size=(size, 2))
        pairs.append((x, (x @ [1.0, -0.5] + rng.normal() * 0.3 + 0.4 * rng.normal(size=size) > 0).astype(int)))
    return pairs


LINE = nn.Linear(2, 2).double()
with torch.no_grad():
    LINE.weight.copy_(torch.tensor([[-1.0, 0.5], [1.0, -0.5]]))
    LINE.bias.zero_()


@pytest.mark.parametrize("about", ["client", "example"])
@pytest.mark.parametrize("draws", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_attacked_next_clients_are_covered_as_promised(about, draws):
    """The attack knows the sets; it moves each new client's examples within the ball."""
    rng = np.random.default_rng(7)
    missed, kept = [], 0
    coverage, confidence, radius, size = 0.7, 0.8, 0.15, 3 if about == "example" else 12
    training = wafl.Federation.from_arrays(worlds(rng, 20, size), num_classes=2, test_fraction=0.0)
    for _ in range(draws):
        pairs = worlds(rng, 20, size)
        calibration = wafl.Federation.from_arrays(
            pairs[:-1], num_classes=2, test_fraction=0.0, names=[f"site {index}" for index in range(19)]
        )
        options = {"confidence": confidence} if about == "client" else {"training": training}
        sets = wafl.prediction_sets(LINE, calibration, coverage=coverage, about=about, radius=radius, **options)
        x, y = pairs[-1]
        above = attack((nn.Sequential(LINE), x, y, sets.threshold), "margin", 2, radius, 2, hidden=False)
        missed.append(above / size)
        kept += above / size <= 1.0 - coverage + 1e-12
    if about == "client":
        assert kept / draws >= confidence - 4.0 * math.sqrt(confidence * (1.0 - confidence) / draws)
    else:
        assert np.mean(missed) <= 1.0 - coverage + 4.0 * np.std(missed) / math.sqrt(draws)
    assert np.mean(missed) > 0.02, "the attack does something"


def test_gamma_is_fixed_on_the_clients_that_trained():
    rng = np.random.default_rng(1)
    options = {"num_classes": 2, "test_fraction": 0.0}
    training = wafl.Federation.from_arrays(worlds(rng, 20, 10), **options)
    names = [f"site {index}" for index in range(19)]
    gammas = set()
    for seed in (2, 3):
        pairs = worlds(np.random.default_rng(seed), 19, 10)
        calibration = wafl.Federation.from_arrays(pairs, names=names, **options)
        about = {"about": "example", "radius": 0.1, "coverage": 0.8}
        sets = wafl.prediction_sets(LINE, calibration, training=training, **about)
        gammas.add(sets.target.shift.gamma)
        assert sets.target.shift.spent + 1 / 20 < 0.2
        plain = wafl.prediction_sets(LINE, calibration, about="example", coverage=0.8)
        assert sets.threshold > plain.threshold
        expected = example_by_hand(calibration, sets.target.shift.gamma, 0.1, 0.8)
        assert sets.threshold == pytest.approx(expected, abs=4e-4)
    assert len(gammas) == 1, "the calibration clients have no say in gamma"


def example_by_hand(calibration, gamma, radius, coverage):
    """The smallest t with (sum_k mean_i max(0, 1 - gamma d^2) + 1) / (K + 1) <= 1 - coverage - gamma radius^2."""
    steep, clients = 2.0 * math.hypot(1.0, 0.5), []
    for client in range(calibration.num_clients):
        x, y = (each.numpy() for each in calibration.train.of(client))
        with torch.no_grad():
            clients.append(rows_of(LINE(torch.tensor(x)).numpy(), y, "margin"))
    t = np.linspace(-3.0, 6.0, 45_001)[:, None]
    misses = [np.maximum(0.0, 1.0 - gamma * (np.maximum(t - each, 0.0) / steep) ** 2).mean(1) for each in clients]
    enough = (sum(misses) + 1) / (len(clients) + 1) <= 1.0 - coverage - gamma * radius**2
    return float(t[enough.argmax(), 0])


def test_a_radius_needs_proven_slopes_and_room_for_gamma():
    clients = wafl.Federation.from_arrays(worlds(np.random.default_rng(0), 19, 5), num_classes=2)
    unknown = nn.Sequential(nn.Linear(2, 4), nn.ELU(), nn.Linear(4, 2)).double()
    with pytest.raises(wafl.PreconditionError, match=r"a radius needs a model with proven slopes.*ELU"):
        wafl.prediction_sets(unknown, clients, radius=0.1, coverage=0.5)
    assert wafl.prediction_sets(unknown, clients, coverage=0.5).threshold < math.inf
    training = wafl.Federation.from_arrays(worlds(np.random.default_rng(1), 9, 5), num_classes=2)
    options = {"training": training, "about": "example", "radius": 0.1}
    nine = clients.of_clients(range(9, 18))
    with pytest.raises(wafl.PreconditionError, match=r"needs more than 9 clients: the coverage must be below 9/10"):
        wafl.prediction_sets(LINE, nine, coverage=0.9, **options)
    for_example(9, 0.9)
