"""The CNN on clients of another kind: CORAL against autograd, the folds of the linear models, and batches of models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from research.clients_ball import networks, selection
from research.clients_ball.coral import Coral
from research.clients_ball.objectives import Examples
from research.clients_ball.tasks import Split, load, prepared
from research.registered import clients_ball_cnn
from research.registration import draft_of, registered, registered_or_draft
from wafl.objectives import ObjectiveState
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task

TURNED: dict[str, Any] = {
    "data": "digits", "change": "rotated", "train": [0.0, 30.0], "target": [40.0, 60.0], "clients": [8, 4],
    "examples": 40, "side": 8,
}  # fmt: skip


def covariances(features: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """The weighted covariance of each client's features, one client after another."""
    result: list[torch.Tensor] = []
    for rows, weight in zip(features, share, strict=True):
        away = rows - (weight[:, None] * rows).sum(0)
        result.append(sum(w * torch.outer(row, row) for w, row in zip(weight, away, strict=True)))  # pyright: ignore
    return torch.stack(result)


def test_coral_has_the_gradient_of_its_definition() -> None:
    """Two runs of three clients: each run has its own reference, which has no gradient."""
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = make_task(nn.Sequential(*layers).double(), "cross_entropy")
    lanes, batch = 6, 5
    params = task.initial()[None] + 0.3 * torch.randn(lanes, task.num_params, generator=generator, dtype=torch.float64)
    x = torch.randn(lanes, batch, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (lanes, batch), generator=generator)
    share = torch.rand(lanes, batch, generator=generator, dtype=torch.float64)
    share /= share.sum(1, keepdim=True)
    penalty = torch.tensor([0.5] * 3 + [7.0] * 3, dtype=torch.float64)
    rate = torch.full((lanes,), 0.1, dtype=torch.float64)
    problem = Problem(task, params)
    state = ObjectiveState({"penalty": penalty, "learning_rate": rate}, weight=share)
    move = Coral(space="1")(problem, x, y, state)

    asked = params.clone().requires_grad_()
    other = Problem(task, asked)
    found = covariances(task.features(asked, x, "1"), share)
    means = torch.cat([found[:3].mean(0).expand(3, -1, -1), found[3:].mean(0).expand(3, -1, -1)]).detach()
    gaps = penalty * (found - means).square().sum((1, 2)) / (4.0 * 3**2)
    total = (share * other.loss(x, y)).sum() + gaps.sum()
    total.backward()
    torch.testing.assert_close(move.descent(problem, share), asked.grad, rtol=1e-9, atol=1e-12)
    assert float((share * move.value).sum()) == pytest.approx(float(total.detach()))


def test_the_folds_are_those_of_the_linear_models() -> None:
    split, about = load(TURNED, 0), {"trials": {"near": 0.5, "far": 0.25}, "components": 10}
    train, _ = prepared(split.train, split.target, 10)
    for (near, far), fold in zip(networks.folds_of(split, about), selection.folds_of(train, 0.5, 0.25), strict=True):
        for mine, theirs in ((near, fold.near), (far, fold.far)):
            assert np.array_equal(mine.y, theirs.y)
            assert np.array_equal(mine.owner, theirs.owner)


def small() -> tuple[Examples, dict[str, Any]]:
    about = {
        "network": {"channels": [2, 2], "hidden": 4}, "schedule": {"rounds": 3, "local_steps": 2, "batch_size": 8},
        "trials": {"floor": 1e-6}, "warm_up": 1,
    }  # fmt: skip
    return load(TURNED, 0).train, about


def test_sizes_and_rates_of_a_method_train_in_one_batch_as_they_do_alone() -> None:
    examples, about = small()
    at = networks.Setup(examples, np.eye(64), 0.01)
    points = [(0.1, 0.1), (1.0, 0.3)]
    for name in ("decay", "IRM", "CORAL"):
        contender = networks.CONTENDERS[name]
        together = networks.trained(contender, points, at, about, "cpu")
        for point, run in zip(points, together, strict=True):
            (alone,) = networks.trained(contender, [point], at, about, "cpu")
            assert run is not None
            assert alone is not None
            np.testing.assert_allclose(
                networks.logits_of(run, examples), networks.logits_of(alone, examples), rtol=1e-4, atol=1e-5
            )
    fit = wafl.fit(
        networks.network(8, 10, [2, 2], 4), networks.federation(examples), wafl.FedAvg(), **about["schedule"],
        learning_rate=0.1, weight_decay=0.1,
    )  # fmt: skip
    (mine,) = networks.trained(networks.CONTENDERS["decay"], points[:1], at, about, "cpu")
    assert mine is not None
    np.testing.assert_allclose(networks.logits_of(mine, examples), networks.logits_of(fit, examples), atol=1e-6)


def test_a_draft_runs_at_its_smallest_alone() -> None:
    if draft_of(clients_ball_cnn.NAME).is_file():
        with pytest.raises(SystemExit, match="is a draft"):
            clients_ball_cnn.main([])
    asked = registered_or_draft(clients_ball_cnn.NAME)[0]["tasks"]
    assert set(asked) <= set(registered(clients_ball_cnn.TASKS)[0]["tasks"])


def test_images_keep_their_rows() -> None:
    split: Split = load(TURNED, 0)
    image = networks.images_of(split.train)[3, 0]
    np.testing.assert_allclose(image.numpy().ravel(), split.train.x[3], rtol=1e-6)
