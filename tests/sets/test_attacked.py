"""Prediction sets for a shift against an attack on each client, through public calls only.

Calibration clients stand for the next one, too: whatever the draw, a promise implies how many of them are covered
after any move, because their own certified counts are what the threshold comes from.
"""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

import wafl
from tests.sets.attack import NORMS, attack, random_model

CLIENTS, CONFIDENCE, COVERAGE = 5, 0.66, {"client": 0.7, "example": 0.6}
GRID = np.linspace(-1.0, 4.0, 12).tolist()
"""Thresholds for the margins of networks, whose distances take long: a grid asks for fewer of them than a search."""


def draw_clients(rng, model, score, features, count):
    """Clients around centers of their own, with the model's own labels and some noise."""
    pairs = []
    for _ in range(count):
        size = int(rng.integers(1, 13))
        x = rng.normal(size=features) + 0.7 * rng.normal(size=(size, features))
        with torch.no_grad():
            outputs = model(torch.tensor(x)).numpy()
        if score == "residual":
            y = outputs[:, 0] + rng.normal(size=size)
        else:
            wrong = rng.random(size) < 0.2
            y = np.where(wrong, rng.integers(0, outputs.shape[1], size), outputs.argmax(1))
        pairs.append((x, y))
    return pairs


def federation(pairs, classes, prefix):
    names = [f"{prefix} {index}" for index in range(len(pairs))]
    return wafl.Federation.from_arrays(pairs, names=names, num_classes=classes, test_fraction=0.0)


def attack_row(rng, score, hidden, about, norm, power):
    """Return the missed shares of the calibration clients and of the next client after the attack."""
    features = int(rng.integers(1, 6))
    model = random_model(rng, score, features, hidden)
    classes = None if score == "residual" else model[-1].out_features
    trained, drawn = (draw_clients(rng, model, score, features, count) for count in (3, CLIENTS + 1))
    radius = float(rng.choice([0.01, 0.05, 0.1, 0.2]))
    options = {"confidence": CONFIDENCE} if about == "client" else {"training": federation(trained, classes, "old")}
    options |= {"radius": radius, "norm": norm, "power": power, "grid": GRID if hidden and classes else None}
    calibration = federation(drawn[:-1], classes, "site")
    sets = wafl.prediction_sets(model, calibration, coverage=COVERAGE[about], about=about, **options)
    ball = score, norm, radius, power, hidden
    missed = [Fraction(attack((model, x, y, sets.threshold), *ball), len(y)) for x, y in drawn]
    still = score, norm, 0.0, power, hidden
    at_rest = [Fraction(attack((model, x, y, sets.threshold), *still), len(y)) for x, y in drawn]
    return missed, at_rest


def check(score, hidden, rows):
    rng = np.random.default_rng([hidden, score == "residual"])
    covered, misses, moved, least = [], [], 0, {"client": math.inf, "example": math.inf}
    for row in range(rows):
        about, norm, power = ("client", "example")[row % 2], NORMS[row // 2 % 3], 1 + row // 6 % 2
        missed, at_rest = attack_row(rng, score, hidden, about, norm, power)
        moved += sum(missed) > sum(at_rest)
        allowed = 1 - Fraction(str(COVERAGE[about]))
        if about == "client":
            kept = sum(each <= allowed for each in missed[:-1])
            room = kept - math.ceil(Fraction(str(CONFIDENCE)) * (CLIENTS + 1))
            covered.append(missed[-1] <= allowed)
        else:
            room = float(allowed - (sum(missed[:-1]) + 1) / (CLIENTS + 1))
            misses.append(float(missed[-1]) - float(allowed))
        least[about] = min(least[about], room)
        assert room >= 0, "more calibration clients are missed than the promise allows"
    assert moved > rows / 4, "the attack does something"
    assert np.mean(covered) >= CONFIDENCE - 4.0 * math.sqrt(CONFIDENCE * (1.0 - CONFIDENCE) / len(covered))
    assert np.mean(misses) <= 4.0 * np.std(misses) / math.sqrt(len(misses))
    print(
        f"{rows} rows, {moved} moved, {sum(covered)} of {len(covered)} next clients covered, "
        f"{np.mean(misses):+.3f} missed beyond the promise, "
        f"least room {least['client']} clients and {least['example']:.4f} of the examples"
    )


@pytest.mark.parametrize("rows", [12, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("score", "hidden"), list(product(("margin", "residual"), (False, True))))
def test_no_attack_takes_a_client_below_the_promise(score, hidden, rows):
    check(score, hidden, rows)
