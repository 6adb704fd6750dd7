"""Every leaf of every kind of certificate is changed and sealed again: only what a slow proof agrees with is accepted.

The slow proof knows nothing of the library's: it moves examples over a fine grid of the plane, and bets against every
pair of clients' means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from tests.oracles.betting import HEDGE, log_capital
from tests.promises.files import publish
from tests.promises.mutations import (
    GRID,
    Content,
    check_forgeries,
    check_mutations,
    forgeries,
    grid_losses,
    priced,
)
from wafl.models.layers import LipschitzLinear, MaxMin, NormalizedLinear
from wafl.promises.promise import digest_of, statement

KINDS: dict[str, dict[str, Any]] = {
    "linear, loss": {"model": "linear", "radii": [0.0, 0.4]},
    "linear, loss, l_inf": {"model": "linear", "radii": [0.3], "norm": math.inf},
    "linear, loss, by slope": {"model": "linear", "radii": [0.3], "power": 1},
    "linear, loss, with confidence": {"model": "linear", "radii": [0.3], "split": "test", "confidence": 0.9},
    "linear, error": {"model": "linear", "radii": [0.0, 0.2], "metric": "error"},
    "linear, error, with confidence": {
        "model": "linear", "radii": [0.2], "metric": "error", "split": "test", "confidence": 0.9
    },
    "network, loss": {"model": "network", "radii": [0.3]},
    "network, error": {"model": "network", "radii": [0.3], "metric": "error"},
    "network, loss, with confidence": {"model": "network", "radii": [0.3], "split": "test", "confidence": 0.9},
    "1-Lipschitz, loss": {"model": "1-Lipschitz", "radii": [0.3]},
    "1-Lipschitz, error": {"model": "1-Lipschitz", "radii": [0.0, 0.05], "metric": "error"},
    "1-Lipschitz, error, with confidence": {
        "model": "1-Lipschitz", "radii": [0.02], "metric": "error", "split": "test", "confidence": 0.8
    },
    "1-Lipschitz, margin": {"model": "margin", "radii": [0.3]},
    "linear, labels": {"model": "linear", "radii": [0.4], "points": 2},
    "without a proof": {"model": "normalized", "radii": [0.0, 0.3]},
}  # fmt: skip
LOSSES = {"margin": wafl.MarginLoss(0.5, 0.25)}


@cache
def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Linear(2, 3)).double()
    network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        for value in (*linear.parameters(), *network.parameters()):
            value.mul_(2.0)
    tight = nn.Sequential(LipschitzLinear(2, 6), MaxMin(), LipschitzLinear(6, 4), MaxMin(), NormalizedLinear(4, 3))
    for layer in tight:
        if not isinstance(layer, MaxMin):
            nn.init.normal_(layer.weight)  # pyright: ignore[reportArgumentType]
    normalized = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 3)).double()
    return {
        "linear": linear, "network": network, "1-Lipschitz": tight.double(), "margin": tight.double(),
        "normalized": normalized,
    }  # fmt: skip


@cache
def federation() -> wafl.Federation:
    rng = np.random.default_rng(0)
    pairs = [(rng.uniform(size=(10, 2)), np.arange(10) % 3) for _ in range(2)]
    return wafl.Federation.from_arrays(pairs, bounds=(0.0, 1.0), num_classes=3, test_fraction=0.5)


@cache
def issued(kind: str) -> Content:
    options = dict(KINDS[kind])
    name = options.pop("model")
    result = publish(models()[name], federation(), loss=LOSSES.get(name), **options)
    return json.loads(json.dumps(result.content))


def margin(model: str) -> tuple[float, float]:
    """u and t of the loss ``t CE((s - u e_y) / t)``."""
    return (LOSSES[model].offset, LOSSES[model].temperature) if model in LOSSES else (0.0, 1.0)


@cache
def landscape(model: str, part: str, client: int, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """The loss of every example of a client after every move of the grid, and the labels."""
    examples = getattr(federation(), part)
    x, y = (each.double().numpy() if each.is_floating_point() else each.numpy() for each in examples.of(client))
    return grid_losses(models()[model], metric, x, y, *margin(model)), y


def phi(model: str, claim: Content, client: int, gamma: float) -> np.ndarray:
    return priced(claim, landscape(model, claim["part"], client, claim["metric"])[0], gamma)


def slow_proof(model: str, content: Content) -> str | None:
    """Why the statement as printed is not true, from a grid of moves, which never finds too much; None if it is."""
    claim = content["claim"]
    if claim["model"] != digest_of(models()[model]):
        return "another model"
    examples = getattr(federation(), claim["part"])
    places = [federation().names.index(client["name"]) for client in claim["clients"]]
    if any(client["examples"] != 5 for client in claim["clients"]) or len(set(places)) != len(places):
        return "other examples"
    if [client["sha256"] for client in claim["clients"]] != [examples.of_clients([index]).digest() for index in places]:
        return "examples of others"
    weights = np.array([client["weight"] for client in claim["clients"]])
    if abs(weights.sum() - 1.0) > 1e-6:
        return "no weights"
    lines = statement(claim, wafl.Promise(None).facts).splitlines()  # pyright: ignore[reportArgumentType]
    printed = [line.split("|")[1:3] for line in lines if line.startswith("| ")]
    for (radius, value), witness in zip(printed[2:], content["witnesses"], strict=True):
        cost = float(radius) ** claim["power"]
        if claim["confidence"] is None:
            gammas = np.geomspace(1e-2, 1e4, 50)
            dual = min(
                gamma * cost + weights @ [phi(model, claim, index, gamma).mean() for index in places]
                for gamma in gammas
            )
            truth = min(dual, 1.0) if claim["metric"] == "error" else dual
            if float(radius) == 0.0:
                truth = weights @ [phi(model, claim, index, 1e30).mean() for index in places]
            # The best of a few gammas is above the truth by a little; the grid is below it.
            if float(value) < truth * 0.97 - 1e-6:
                return f"radius {radius}: {value} is below {truth}"
            continue
        bound = drawn(model, claim, places, weights, witness) + witness["gamma"] * cost
        if float(value) < min(bound, 1.0 if claim["metric"] == "error" else math.inf) * 0.97:
            return f"radius {radius}: {value} is below {bound}"
    return None


def refuted(model: str, content: Content) -> str | None:
    """Why an estimate is surely too small: what the clients that are known lose before anything moves; None if not."""
    claim, names, rest = content["claim"], federation().names, 0.0
    if claim["model"] != digest_of(models()[model]):
        return "another model"
    examples = getattr(federation(), claim["part"])
    for client in claim["clients"]:
        if client["name"] not in names:
            continue
        index = names.index(client["name"])
        if (client["examples"], client["sha256"]) != (5, examples.of_clients([index]).digest()):
            return "other examples"
        rest += client["weight"] * phi(model, claim, index, 1e30).mean()
    return next((f"{row['value']} is below {rest}" for row in claim["rows"] if row["value"] < rest * 0.9999), None)


def drawn(model: str, claim: Content, places: list[int], weights: np.ndarray, witness: Content) -> float:
    """The largest mean that no capital refutes, of all pairs of means on a grid, from phi of the grid of moves.

    The range of phi is its largest value in the box.
    """
    box = np.stack(np.meshgrid(*[np.linspace(0.0, 1.0, 5)] * 2), axis=-1).reshape(-1, 2)
    most = 1.0
    if claim["metric"] == "loss":
        order = {"l1": 1, "l2": 2, "l_inf": np.inf}[claim["norm"]]
        price = witness["gamma"] * np.linalg.norm(GRID, ord=order, axis=1) ** claim["power"]
        with torch.no_grad():
            outputs = models()[model](torch.from_numpy((box[:, None] + GRID).reshape(-1, 2))).numpy()
        outputs = outputs.reshape(len(box), len(GRID), 3)
        losses = np.log(np.exp(outputs[..., None, :] - outputs[..., :, None]).sum(-1))
        most = (losses - price[:, None]).max()
    bets = witness["draws"]["bets"]
    if max(bets) * most >= 1.0:
        return most
    means, logs = np.linspace(0.0, most, 400), np.zeros((len(HEDGE), 1))
    mixed = np.zeros(1)
    for index, weight, bet in zip(places, weights, bets, strict=True):
        values = phi(model, claim, index, witness["gamma"]).clip(max=most)
        client_logs = np.array([[log_capital(values, mean, part * bet) for mean in means] for _, part in HEDGE])
        logs = (logs[:, :, None] + client_logs[:, None]).reshape(len(HEDGE), -1)
        mixed = (mixed[:, None] + weight * means).ravel()
    capital = np.array([share for share, _ in HEDGE]) @ np.exp(logs)
    return float(mixed[capital < len(claim["rows"]) / (1.0 - claim["confidence"])].max())


def labels_hold(model: str, content: Content, other: Content) -> bool:
    """Whether what is published about labels is true: as it was, or with means of phi that are not below the truth."""
    then, now = content["labels"], other["labels"]
    if then is None or now is None:
        return True
    for before, after in zip(then["labels"], now["labels"], strict=True):
        kept = [each for each in before if each not in ("loss", "surrogates", "points")]
        if any(before[each] != after[each] and not same(before[each], after[each]) for each in kept):
            return False
        x, y = (
            np.concatenate(each) for each in zip(*(federation().train.of(index) for index in range(2)), strict=True)
        )
        cost = ((x[y == after["label"]][:, None] - np.array(after["points"])) ** 2).sum(-1).min(1)
        if abs(math.sqrt(cost.mean()) - after["spread"]) > 1e-8:
            return False
        for gamma, value in ((1e30, after["loss"]), *zip(now["gammas"], after["surrogates"], strict=True)):
            means = [
                phi(model, content["claim"], index, gamma)[
                    landscape(model, "train", index, "loss")[1] == after["label"]
                ]
                for index in range(2)
            ]
            if value < np.concatenate(means).mean() * (1.0 - 1e-9):  # both clients have the same weights and sizes
                return False
    return True


def same(before: Any, after: Any) -> bool:
    """Whether numbers are the same but for the last digits, as another machine computes them."""
    return isinstance(after, float) and abs(before - after) <= 1e-9


def the_check(kind: str) -> tuple[Callable[[Path], Any], Callable[[Content], str | None]]:
    """How files of a kind are verified, and the slow proof that they are untrue."""
    content, model = issued(kind), KINDS[kind]["model"]

    def verify(file: Path) -> Any:
        return wafl.verify(file, model=models()[model], data=federation(), loss=LOSSES.get(model))

    def untrue(other: Content) -> str | None:
        if other["attested"] is not None:
            return refuted(model, other)
        return slow_proof(model, other) or (None if labels_hold(model, content, other) else "labels")

    return verify, untrue


def check_kind(kind: str, folder: Path, share: float) -> None:
    check_mutations(issued(kind), share, folder, *the_check(kind))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["without a proof", *(kind for kind in KINDS if kind not in ("without a proof", "linear, labels"))]
)
def test_a_hundred_forgeries_of_every_field_are_refused_or_true(kind: str, tmp_path: Path) -> None:
    made = forgeries(issued(kind))
    assert len(made) >= 100
    _, refused = check_forgeries(issued(kind), made, tmp_path, *the_check(kind))
    assert refused > 30


@pytest.mark.parametrize("kind", KINDS)
def test_some_changes_of_a_certificate_are_refused_or_true(kind: str, tmp_path: Path) -> None:
    check_kind(kind, tmp_path, 0.02 if kind == "linear, labels" else 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_change_of_a_certificate_is_refused_or_true(kind: str, tmp_path: Path) -> None:
    check_kind(kind, tmp_path, 1.0)
