"""AutoAttack: its strength, its ball and its box, and what it leaves untouched."""

import importlib.util
import logging
import math
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from wafl import PGD, Federation, evaluate
from wafl.models import MLR

if importlib.util.find_spec("pyautoattack") is None:  # importing it takes seconds
    pytest.skip("AutoAttack is not installed: pip install 'wafl-learn[autoattack]'", allow_module_level=True)

from wafl.attacks.autoattack import AutoAttack
from wafl.config.experiment import Attack
from wafl.config.plan import make_attack

UNIT = (0.0, 1.0)


def train(model, x, y, steps=80):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def trained(classes, size):
    """A model of the first ``classes`` digits, with test examples and their labels."""
    images, targets = load_digits(return_X_y=True)
    known = targets < classes
    x = torch.from_numpy(images[known] / 16.0).float().view(-1, 1, 8, 8)
    y = torch.from_numpy(targets[known]).long()
    return train(MLR((1, 8, 8), classes), x[:-size], y[:-size]), x[-size:], y[-size:]


@pytest.fixture(scope="module")
def digits():
    return trained(10, 150)


@pytest.fixture(scope="module")
def three():
    """Only two targets, so that an attack takes a second."""
    return trained(3, 60)


def accuracy(model, x, y):
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def check_strength(digits, attack):
    model, x, y = digits
    moved = attack(model, x, y)
    lengths = torch.linalg.vector_norm((moved - x).flatten(1), ord=attack.norm, dim=1)
    assert float(lengths.max()) <= attack.epsilon * (1 + 1e-5)
    assert 0.0 <= float(moved.min()) <= float(moved.max()) <= 1.0
    ours = PGD(attack.epsilon, steps=40, norm=attack.norm, bounds=UNIT)
    robust, under_pgd = accuracy(model, moved, y), accuracy(model, ours(model, x, y), y)
    assert 0.2 < robust < accuracy(model, x, y) - 0.1
    assert robust <= under_pgd + 0.01


@pytest.mark.slow
def test_autoattack_stays_in_its_l2_ball_and_is_as_strong_as_pgd(three):
    check_strength(three, AutoAttack(epsilon=0.7, norm=2, bounds=UNIT, queries=50))


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "epsilon"), [(math.inf, 0.1), (2, 0.5)])
def test_the_standard_ensemble_is_as_strong_as_pgd(digits, norm, epsilon):
    check_strength(digits, AutoAttack(epsilon=epsilon, norm=norm, bounds=UNIT))


def test_only_examples_that_are_flipped_are_moved(three):
    model, x, y = three
    moved = AutoAttack(epsilon=0.2, bounds=UNIT, queries=10)(model, x, y)
    changed = (moved != x).flatten(1).any(1)
    with torch.no_grad():
        before, after = model(x).argmax(1) == y, model(moved).argmax(1) == y
    assert bool((changed == (before & ~after)).all())


@pytest.mark.slow
def test_the_attack_depends_on_its_seed_alone_and_leaves_global_state_untouched(three):
    model, x, y = three
    attack = AutoAttack(epsilon=0.2, bounds=UNIT, queries=10)
    torch.manual_seed(1)
    first = attack(model, x, y, seed=3)
    torch.manual_seed(2)
    before, numpy_before, trace = torch.get_rng_state(), np.random.get_state()[1].copy(), sys.gettrace()
    assert torch.equal(attack(model, x, y, seed=3), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)
    assert sys.gettrace() is trace
    assert not torch.equal(attack(model, x, y, seed=4), first)


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("norm", [2, math.inf])
def test_few_classes_and_plain_vectors_can_be_attacked(classes, norm, caplog):
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.integers(classes, size=30))
    x = torch.from_numpy(rng.uniform(size=(30, classes))) * 0.5
    x[torch.arange(30), y] += 0.3
    model = nn.Linear(classes, classes).double()
    model.load_state_dict({"weight": 10.0 * torch.eye(classes), "bias": torch.zeros(classes)})
    with caplog.at_level(logging.WARNING):
        moved = AutoAttack(epsilon=0.2, norm=norm, bounds=UNIT)(model, x, y)
    assert moved.shape == x.shape
    assert moved.dtype == x.dtype
    lengths = torch.linalg.vector_norm(moved - x, ord=norm, dim=1)
    assert float(lengths.max()) <= 0.2 * (1 + 1e-9)
    assert accuracy(model, moved, y) < accuracy(model, x, y)
    assert "classes" not in caplog.text


def test_evaluate_accepts_autoattack(three):
    model, x, y = three
    clients = Federation.from_arrays([(x[::2], y[::2]), (x[1::2], y[1::2])], test_fraction=0.5, bounds=UNIT)
    score = evaluate(model, clients, attack=AutoAttack(epsilon=0.2, bounds=UNIT, queries=5), attacked=0.5)
    assert sum(client.attacked for client in score.per_client) == 1
    assert score.worst_client.attacked
    assert score.attack == "l_inf AutoAttack, epsilon 0.2 (input units), 5 queries, within [0, 1]"


def test_a_file_may_say_how_many_queries_there_are():
    assert make_attack(Attack(kind="autoattack", queries=20)) == AutoAttack(epsilon=0.1, queries=20)


def test_evaluate_hands_it_more_examples_at_once_on_a_gpu(three, monkeypatch):
    model, x, y = three
    sizes = []

    def move(self, problem, population, seed=0):
        sizes.append(population.x.shape[1])
        return population.x

    monkeypatch.setattr(AutoAttack, "move", move)
    monkeypatch.setattr(importlib.import_module("wafl.evaluation.evaluate"), "CHUNK", 4)
    clients = Federation.from_arrays([(x, y)], test_fraction=0.5, bounds=UNIT)
    attack = AutoAttack(epsilon=0.2, bounds=UNIT)
    evaluate(model, clients, attack=attack)
    assert set(sizes) <= {4, len(clients.test.y) % 4}
    assert attack.at_once(4, torch.device("cuda")) > 4


def test_an_epsilon_of_zero_moves_nothing(three):
    model, x, y = three
    assert torch.equal(AutoAttack(epsilon=0.0, bounds=UNIT)(model, x, y), x)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": -0.1}, r"epsilon=-0.1 must be finite and at least 0"),
        ({"epsilon": math.nan}, r"epsilon=nan must be finite"),
        ({"norm": 1}, r"norm=1 must be 2 or inf"),
        ({"bounds": None}, r"bounds=None: AutoAttack works inside a box: give bounds=\(low, high\)"),
        ({"bounds": (0.0, math.inf)}, r"both finite"),
        ({"bounds": (1.0, 0.0)}, r"low < high"),
        ({"queries": 0}, r"queries=0 must be at least 1; the standard is 5000"),
    ],
)
def test_bad_settings_are_refused_with_the_remedy(settings, message):
    with pytest.raises(ValueError, match=message):
        AutoAttack(**{"epsilon": 0.1, "bounds": UNIT, **settings})


def test_data_outside_the_bounds_and_regressions_are_refused(three):
    model, x, y = three
    attack = AutoAttack(epsilon=0.1, bounds=(0.0, 0.5))
    with pytest.raises(ValueError, match=r"x lies in \[0, 1\], outside bounds=\(0.0, 0.5\): give the bounds"):
        attack(model, x, y)
    with pytest.raises(ValueError, match="cannot attack a regression model: use PGD"):
        attack(nn.Linear(2, 1), torch.zeros(3, 2), torch.zeros(3, 1), loss="squared_error")


def test_if_the_package_is_missing_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(ValueError, match=r"pip install 'wafl-learn\[autoattack\]'"):
        AutoAttack(epsilon=0.1, bounds=UNIT)
