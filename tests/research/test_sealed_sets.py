"""Prediction sets at sealed clients: coverage by plain loops, the attack against another one, and the verdict."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from research.promises import sets, sets_page
from tests.oracles import conformal
from tests.sets.attack import attack, linear_moves, random_model, rows_of

ABOUT: dict[str, Any] = {"norm": 2, "power": 2, "radii": [0.0, 0.1], "coverage": 0.8, "confidences": [0.99, 0.9]}
ABOUT |= {"coverages": [0.99, 0.8, 0.7]}


def drawn(seed: int, count: int, name: str, classes: int | None) -> wafl.Federation:
    random = np.random.default_rng(seed)
    pairs = [(random.normal(size=(8, 3)) + random.normal(), random.normal(size=8)) for _ in range(count)]
    if classes is not None:
        pairs = [(x, (x[:, 0] + 0.5 * y > 0).astype(int) + (x[:, 1] > 1)) for x, y in pairs]
    names = [f"{name} {index}" for index in range(count)]
    return wafl.Federation.from_arrays(pairs, names=names, num_classes=classes, test_fraction=0.25)


@pytest.mark.parametrize("classes", [3, None])
def test_thresholds_and_coverage_are_those_of_plain_loops(classes: int | None) -> None:
    seen, calibration, sealed = (drawn(seed, 12, name, classes) for seed, name in enumerate("abc"))
    loss = "cross_entropy" if classes else "squared_error"
    usual: dict[str, Any] = {"rounds": 5, "local_steps": 1, "progress": False, "loss": loss}
    run = wafl.fit(wafl.models.mlr(seen), seen, wafl.FedAvg(), learning_rate=0.1, **usual)
    rows = {(row["sets"], row["radius"]): row for row in sets.measure(ABOUT, run, seen, calibration, sealed)}
    score, model = "margin" if classes else "residual", run.module.double()
    scores, clients = list[list[float]](), list[tuple[Any, Any]]()
    for federation in (calibration, sealed):
        for index in range(12):
            x, y = (torch.cat(each) for each in zip(federation.train.of(index), federation.test.of(index), strict=True))
            x, y = x.double(), y.flatten()
            with torch.no_grad():
                scores.append(rows_of(model(x).numpy(), y.numpy(), score).tolist())
            clients.append((x.numpy(), y.numpy()))
    known, new = scores[:12], scores[12:]
    expected = {
        "pooled": conformal.split_conformal([each for client in known for each in client], "0.8"),
        "example": conformal.example_threshold(known, "0.8"),
        "client": conformal.client_threshold(known, "0.8", "0.9"),
    }
    (layer,) = (each for each in model.modules() if isinstance(each, nn.Linear))
    plain = nn.Sequential(layer)
    for name, threshold in expected.items():
        row = rows[name, 0.0]
        assert row["threshold"] == pytest.approx(threshold, rel=1e-6)
        level = max(threshold, 0.0) if classes else threshold
        assert row["covered"] == pytest.approx([np.mean([each <= level for each in client]) for client in new])
        moved = rows[name, 0.1]
        assert moved["threshold"] == pytest.approx(threshold) if name == "pooled" else moved["threshold"] > threshold
        level = max(moved["threshold"], 0.0) if classes else moved["threshold"]
        missed = [attack((plain, x, y, level), score, 2, 0.1, 2, hidden=False) / 8 for x, y in clients[12:]]
        assert moved["covered"] == pytest.approx([1.0 - each for each in missed])
    assert rows["client", 0.0]["confidence"] == 0.9


@pytest.mark.parametrize("score", ["margin", "residual"])
def test_moves_are_the_shortest_and_within_the_radius(score: str) -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        model = random_model(random, score, 3, hidden=False)
        x = random.normal(size=(9, 3))
        outputs = model(torch.tensor(x)).detach().numpy()
        weight = model[0].weight.detach().numpy()
        if score == "residual":
            y = outputs[:, 0] + random.normal(size=9)
            leads = np.stack([outputs[:, 0] - y, y - outputs[:, 0]], axis=1)
            gradients = np.broadcast_to(np.stack([weight[0], -weight[0]]), (9, 2, 3))
        else:
            y = random.integers(0, len(weight), 9)
            leads, gradients = outputs - outputs[np.arange(9), y][:, None], weight[None] - weight[y][:, None]
            leads[np.arange(9), y] = -math.inf
        moves = sets.worst_moves(leads, gradients, 0.7, 0.3)
        assert (moves**2).sum() <= 9 * 0.3**2
        shortest = np.linalg.norm(linear_moves(model, x, y, 0.7, 2, score), axis=1)
        length = np.linalg.norm(moves, axis=1)
        assert length[length > 0] == pytest.approx(shortest[length > 0], rel=1e-6, abs=1e-8)
        after = rows_of(model(torch.tensor(x + moves)).detach().numpy(), y, score)
        assert (after[length > 0] > 0.7).all()
        left = np.sort(shortest[(length == 0) & (shortest > 0)])
        assert not len(left) or (moves**2).sum() + left[0] ** 2 > 9 * 0.3**2


def row(name: str, covered: list[float], **more: Any) -> dict[str, Any]:
    about = {"task": "t", "method": "FedAvg", "radius": 0.0, "calibration": 19, "classes": 10, "confidence": 0.9}
    return {**about, "sets": name, "promised": 0.9, "covered": covered, "sizes": [2.0], "full": 0.0, **more}


def test_a_promise_fails_if_too_few_clients_are_covered_and_not_by_chance() -> None:
    about = {"methods": ["FedAvg"], "radii": [0.0], "coverage": 0.9, "verdict": {"level": 0.05}}
    for covered, failed in (([1.0] * 17 + [0.0] * 3, False), ([1.0] * 6 + [0.0] * 14, True)):
        rows = [row("pooled", covered), row("example", [1.0]), row("client", covered)]
        text = sets_page.tables({"rows": rows, "absent": {"x": "y"}}, about)["sealed-sets"]
        assert ("Promises failed: t (FedAvg, radius 0, client)" in text) is failed
        assert "their data are not here: x" in text
    many = [row("example", [0.85, 0.8], task=f"t{index}") for index in range(3)]
    rows = [*many, *(row(name, [1.0], task=f"t{index}") for index in range(3) for name in ("pooled", "client"))]
    assert (
        "all tasks (FedAvg, radius 0, example)" in sets_page.tables({"rows": rows, "absent": {}}, about)["sealed-sets"]
    )
