"""Our PGD and FGSM against foolbox 3's, on the same models, data and settings."""

import copy
import math
import platform
import warnings
from functools import cache

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from wafl import FGSM, PGD
from wafl.models import MLR

with warnings.catch_warnings():
    # foolbox 3.3.4 imports gaussian_filter from its place before scipy 1.8.
    warnings.filterwarnings("ignore", "Please import `gaussian_filter` from the `scipy.ndimage`", DeprecationWarning)
    import foolbox

BOUNDS = (0.0, 1.0)
NORMS = {math.inf: (0.1, 0.02), 2: (0.6, 0.15)}  # epsilon and step size
ON_ARM = platform.machine() in ("aarch64", "arm64")
CASES = [("mlr", torch.float32), ("mlr", torch.float64), ("conv", torch.float64), ("conv", torch.float32)]


def conv_net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)
        )


@cache
def trained(name):
    """A model trained briefly on the first half of the digits, and the second half."""
    images, targets = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images / 16.0).float().view(-1, 1, 8, 8), torch.from_numpy(targets).long()
    model = MLR((1, 8, 8), 10) if name == "mlr" else conv_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:897]), y[:897]).backward()
        optimizer.step()
    return model.eval(), x[897:], y[897:]


def in_dtype(name, dtype):
    model, x, y = trained(name)
    return copy.deepcopy(model).to(dtype), x.to(dtype), y


def theirs(attack, model, x, y, epsilon, seed=0):
    """The examples as foolbox moves them; it draws from torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _, moved, _ = attack(foolbox.PyTorchModel(model, bounds=BOUNDS), x, y, epsilons=epsilon)
    return moved


def pgd_of_foolbox(norm, step_size, steps, random_start):
    kind = foolbox.attacks.LinfPGD if norm == math.inf else foolbox.attacks.L2PGD
    return kind(rel_stepsize=None, abs_stepsize=step_size, steps=steps, random_start=random_start)


def accuracy(model, x, y):
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_pgd_and_fgsm_move_every_example_as_foolbox_does(name, dtype, norm):
    model, x, y = in_dtype(name, dtype)
    epsilon, step_size = NORMS[norm]
    fgsm = foolbox.attacks.LinfFastGradientAttack if norm == math.inf else foolbox.attacks.L2FastGradientAttack
    pgd = PGD(epsilon, step_size, steps=20, norm=norm, bounds=BOUNDS)
    for attack, peer, least in (
        (pgd, pgd_of_foolbox(norm, step_size, 20, False), 0.2),
        (FGSM(epsilon, norm=norm, bounds=BOUNDS), fgsm(random_start=False), 0.0),
    ):
        expected = theirs(peer, model, x, y, epsilon)
        assert least <= accuracy(model, expected, y) < accuracy(model, x, y) - 0.2
        result = attack(model, x, y)
        if not ON_ARM or (name, dtype, norm) != ("conv", torch.float32, 2):
            assert float((result - expected).abs().max()) <= 1e-5
        else:  # slopes that nearly vanish are rounded differently in foolbox, and a step has a fixed length
            exact, exact_x, _ = in_dtype(name, torch.float64)
            exact = theirs(peer, exact, exact_x, y, epsilon)
            ours, peers = ((moved.double() - exact).abs().mean() for moved in (result, expected))
            assert float(ours) <= 2.0 * float(peers) < 1e-5


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["mlr", "conv"])
def test_with_random_starts_pgd_is_as_strong_as_foolbox(name, norm):
    """The mean of three draws each, as the accuracy of a single draw has a std of 0.2 to 0.3 points."""
    model, x, y = trained(name)
    epsilon, step_size = NORMS[norm]
    attack = PGD(epsilon, step_size, steps=20, norm=norm, random_start=True, bounds=BOUNDS)
    peer = pgd_of_foolbox(norm, step_size, 20, True)
    ours = [accuracy(model, attack(model, x, y, seed=seed), y) for seed in range(3)]
    expected = [accuracy(model, theirs(peer, model, x, y, epsilon, seed), y) for seed in range(3)]
    assert abs(sum(ours) - sum(expected)) / 3 <= 0.005
