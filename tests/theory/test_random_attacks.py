"""Random models are attacked by plain gradient ascent, which shares no code with wafl: no certified value is exceeded.

A distribution inside the ball moves every example by its own vector, with a mean cost of at most ``radius^power``.
The ascent moves examples along gradients and then scales all moves by one factor, so that the budget is spent exactly.
A second attack sends a part of the mass farther: that which gains most for its cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import wafl

Losses = Callable[[Tensor], Tensor]

STEPS, STARTS = 12, 2
ROOM = 1e-9
"""How far float64 may compute above a bound that includes its rounding: nothing but the sums of this test."""
ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.GELU, nn.Softplus,
    lambda: nn.LeakyReLU(0.2), lambda: nn.GELU(approximate="tanh"),
]  # fmt: skip


class Residual(nn.Module):
    """A sum of a layer's input and what two layers make of it."""

    def __init__(self, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.first, self.activation, self.second = nn.Linear(width, width), activation, nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.activation(self.first(x)))


def a_model(kind: str, rng: np.random.Generator, outputs: int) -> tuple[nn.Module, tuple[int, ...]]:
    activation = ACTIVATIONS[rng.integers(len(ACTIVATIONS))]
    features, width = int(rng.integers(2, 6)), int(rng.integers(3, 8))
    layers: list[nn.Module]
    match kind:
        case "linear":
            layers = [nn.Linear(features, outputs)]
        case "mlp":
            middle = [nn.Linear(width, width), activation()] if rng.random() < 0.5 else []
            layers = [nn.Linear(features, width), activation(), *middle, nn.Linear(width, outputs)]
        case "residual":
            layers = [nn.Linear(features, width), Residual(width, activation()), nn.Linear(width, outputs)]
        case "normalized":
            layers = [nn.Linear(features, width), nn.BatchNorm1d(width), activation(), nn.Linear(width, outputs)]
        case _:
            pooling = [nn.MaxPool2d(2), nn.AvgPool2d(2)][rng.integers(2)]
            convolution = nn.Conv2d(1, 2, 3, padding=1, stride=int(rng.integers(1, 3)))
            size = 4 if convolution.stride == (1, 1) else 2
            flat = 2 * (size // 2) ** 2
            layers = [convolution, activation(), pooling, nn.Flatten(), nn.Linear(flat, outputs)]
    model = nn.Sequential(*layers).double().eval()
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.is_floating_point():
            drawn = torch.from_numpy(rng.normal(size=tuple(value.shape), scale=float(rng.choice([0.3, 1.0, 2.0]))))
            value.data.copy_(drawn.abs() + 0.1 if name.endswith("running_var") else drawn)
    return model, (1, 4, 4) if kind == "convolution" else (features,)


@dataclass(frozen=True)
class Ball:
    """A ball around equally weighted examples, whose ground cost is the norm of ``matrix^-1`` times a move."""

    radius: float
    norm: float = 2
    power: int = 2
    matrix: Tensor | None = None

    def costs(self, moves: Tensor) -> Tensor:
        """The cost of each move ``[n, d]``."""
        moves = moves if self.matrix is None else torch.linalg.solve(self.matrix, moves.T).T
        return torch.linalg.vector_norm(moves, self.norm, dim=1) ** self.power

    def scaled(self, moves: Tensor) -> Tensor:
        """Scale all moves by one factor, so that their mean cost is what the ball allows."""
        mean = float(self.costs(moves).mean())
        return moves * (self.radius / mean ** (1.0 / self.power) * (1.0 - 1e-12)) if mean > 0.0 else moves

    def toward(self, slopes: Tensor) -> Tensor:
        """The moves along which linear functions with these slopes ``[n, d]`` rise most, longer for steeper ones."""
        slopes = slopes if self.matrix is None else slopes @ self.matrix
        if self.norm == 2:
            moves = slopes
        elif self.norm == math.inf:
            moves = slopes.sign() * slopes.abs().sum(1, keepdim=True)
        else:
            steepest = slopes.abs().argmax(1, keepdim=True)
            moves = torch.zeros_like(slopes).scatter(1, steepest, slopes.gather(1, steepest))
        return moves if self.matrix is None else moves @ self.matrix.T


def attacked(losses: Losses, x: Tensor, ball: Ball) -> float:
    """Return the largest mean loss that is found inside the ball around ``x [n, d]``."""
    rest = losses(x).detach()
    best = float(rest.mean())
    generator = torch.Generator().manual_seed(0)
    for start in range(STARTS):
        moves = start * torch.randn(x.shape, generator=generator, dtype=x.dtype)
        for step in range(STEPS):
            moves = ball.scaled(moves)
            moved = (x + moves).requires_grad_()
            value = losses(moved)
            (slopes,) = torch.autograd.grad(value.sum(), moved)
            farther = [of_a_part(losses, x, factor * moves, rest, ball) for factor in (1.5, 3.0, 10.0)]
            best = max(best, float(value.detach().mean()), *farther)
            moves = moves + 2.0 / (1.0 + step) * ball.scaled(ball.toward(slopes))
    return best


def of_a_part(losses: Losses, x: Tensor, moves: Tensor, rest: Tensor, ball: Ball) -> float:
    """Return the mean loss if only a part of the mass moves, as much as the ball allows."""
    with torch.no_grad():
        gains, costs = losses(x + moves) - rest, ball.costs(moves).clamp_min(1e-300)
    order = (gains / costs).argsort(descending=True)
    gains, costs = gains[order].clamp_min(0.0), costs[order]
    before = costs.cumsum(0) - costs
    parts = ((len(x) * ball.radius**ball.power - before) / costs).clamp(0.0, 1.0)
    return float((rest.sum() + (parts * gains).sum()) / len(x)) * (1.0 - 1e-12)


def losses_of(model: nn.Module, y: Tensor, shape: tuple[int, ...], loss: str, metric: str) -> Losses:
    """The loss, or the error, of each flat example; errors have the slope of the margin, in which they are a step."""

    def losses(flat: Tensor) -> Tensor:
        outputs = model(flat.view(-1, *shape))
        if loss == "squared_error":
            return (outputs - y).square().sum(1)
        if metric == "error":
            label = outputs.gather(1, y[:, None])[:, 0]
            behind = outputs.scatter(1, y[:, None], -math.inf).amax(1) - label
            return (behind >= 0.0).double() + behind - behind.detach()
        if loss == "margin(0.5, 0.5)":
            outputs = (outputs - 0.5 * functional.one_hot(y, outputs.shape[1])) / 0.5
            return 0.5 * functional.cross_entropy(outputs, y, reduction="none")
        return functional.cross_entropy(outputs, y, reduction="none")

    return losses


def assert_not_above(reached: float, certified: float, about: object) -> None:
    assert reached <= certified * (1.0 + ROOM) + ROOM, f"{about}: {reached!r} is above {certified!r}"


def attack_a_certificate(seed: int) -> bool:
    """Attack one random certificate, and what its file would state; return whether its value is finite."""
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(["linear", "mlp", "mlp", "residual", "normalized", "convolution"]))
    metric = str(rng.choice(["loss", "loss", "error"]))
    squared = kind == "linear" and metric == "loss" and rng.random() < 0.4
    loss = "squared_error" if squared else str(rng.choice(["cross_entropy", "cross_entropy", "margin(0.5, 0.5)"]))
    outputs = 1 if squared else int(rng.integers(2, 5))
    model, shape = a_model(kind, rng, outputs)
    x = rng.normal(size=(3, 6, *shape))
    y = rng.normal(size=(3, 6, 1)) if squared else rng.integers(0, outputs, size=(3, 6))
    ball = Ball(
        float(rng.choice([0.01, 0.1, 0.5, 2.0])),
        float(rng.choice([1.0, 2.0, math.inf])),
        1 if rng.random() < 0.3 and not squared else 2,
    )
    options: dict[str, Any] = {"norm": ball.norm, "power": ball.power, "metric": metric, "loss": loss, "gap": 0.1}
    flat, labels, head = torch.from_numpy(x).flatten(0, 1), torch.from_numpy(y).flatten(0, 1), model
    inside = shape
    if kind == "linear" and rng.random() < 0.5:
        matrix = torch.from_numpy(rng.normal(size=(shape[0], shape[0])) + 2.0 * np.eye(shape[0]))
        ball, options["cost_matrix"] = Ball(ball.radius, ball.norm, ball.power, matrix), matrix.numpy()
    elif kind in ("linear", "mlp") and rng.random() < 0.4:
        # Behind a layer that has no proof: what comes after it is linear.
        model = nn.Sequential(nn.ELU(), nn.LayerNorm(shape[0]), nn.Linear(shape[0], outputs)).double()
        head, options["space"], flat = model[2], "1", model[:2](flat).detach()
    clients = wafl.Federation.from_arrays(
        list(zip(x, y, strict=True)), test_fraction=0.0, num_classes=None if squared else outputs
    )
    result = wafl.certify(model, clients, radii=[ball.radius], achieved=False, **options)
    certified, about = result[0].certified, (seed, model, options, ball)
    assert certified is not None, about
    reached = attacked(losses_of(head, labels, inside, loss, metric), flat.flatten(1), ball)
    assert_not_above(reached, certified, about)
    if certified < math.inf and head is model and ball.matrix is None and not (squared and ball.norm == math.inf):
        assert_not_above(reached, result.published.values[ball.radius], about)
    return certified < math.inf


def attack_the_next_client(seed: int) -> None:
    """Attack the certified loss of each held-out client."""
    rng = np.random.default_rng(seed)
    model, shape = a_model(str(rng.choice(["linear", "mlp", "residual"])), rng, 3)
    x, y = rng.normal(size=(8, 5, *shape)), rng.integers(0, 3, size=(8, 5))
    clients = wafl.Federation.from_arrays(list(zip(x, y, strict=True)), test_fraction=0.0, num_classes=3)
    seen, unseen = clients.hold_out(0.5)
    metric, norm = str(rng.choice(["loss", "error"])), float(rng.choice([1.0, 2.0, math.inf]))
    radius = float(rng.choice([0.1, 0.5]))
    result = wafl.next_client(model, seen, unseen, radius=radius, norm=norm, metric=metric)
    assert result.proven
    for index, certified in enumerate(result.measured):
        theirs, labels = unseen.train.of(index)
        losses = losses_of(model, labels, shape, "cross_entropy", metric)
        reached = attacked(losses, theirs.double().flatten(1), Ball(radius, norm))
        assert_not_above(reached, certified, (seed, index, model, metric, norm, radius))


def attack_with_confidence(seed: int) -> None:
    """Attack the distributions that test examples were drawn from, of which there are 300 examples per client."""
    rng = np.random.default_rng(seed)
    model, shape = a_model(str(rng.choice(["linear", "mlp"])), rng, 2)
    x, y = rng.uniform(size=(2, 300, *shape)), rng.integers(0, 2, size=(2, 300))
    drawn = rng.integers(0, 300, size=(2, 2, 40))
    pairs = [(x[i][drawn[i, 0]], y[i][drawn[i, 0]], x[i][drawn[i, 1]], y[i][drawn[i, 1]]) for i in range(2)]
    clients = wafl.Federation.from_arrays(pairs, bounds=(0.0, 1.0), num_classes=2)
    metric, norm = str(rng.choice(["loss", "error"])), float(rng.choice([1.0, 2.0, math.inf]))
    if any(isinstance(layer, nn.Softplus) for layer in model.modules()):
        metric = "error"  # the largest loss of a network that jumps is not known
    options: dict[str, Any] = {"norm": norm, "metric": metric, "split": "test", "confidence": 0.999}
    result = wafl.certify(model, clients, radii=[0.2], achieved=False, **options)
    certified = result[0].certified
    assert certified is not None
    whole, labels = torch.from_numpy(x).flatten(0, 1), torch.from_numpy(y).flatten(0, 1)
    reached = attacked(losses_of(model, labels, shape, "cross_entropy", metric), whole.flatten(1), Ball(0.2, norm))
    assert_not_above(reached, certified, (seed, model, options))


@pytest.mark.slow
def test_no_attack_exceeds_a_certified_value() -> None:
    assert sum(attack_a_certificate(seed) for seed in range(12)) >= 8
    for seed in range(2):
        attack_the_next_client(seed)
        attack_with_confidence(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_no_attack_exceeds_a_certified_value_in_hundreds_of_cases(part: int) -> None:
    assert sum(attack_a_certificate(seed) for seed in range(1000 + 40 * part, 1040 + 40 * part)) >= 30
    for seed in range(1000 + 5 * part, 1005 + 5 * part):
        attack_the_next_client(seed)
        attack_with_confidence(seed)


def test_the_attack_reaches_what_is_known_in_closed_form() -> None:
    """Of one example and a linear model with squared error, ``(|r| + ||w||_* radius)^2`` is the largest loss in W_2."""
    weight = torch.tensor([[1.0, -2.0, 0.5]]).double()
    model = nn.Linear(3, 1, bias=False).double()
    model.load_state_dict({"weight": weight})
    x, y = torch.tensor([[0.3, 0.2, -0.1]]).double(), torch.tensor([[1.0]]).double()
    residual = abs(float(weight @ x[0] - y[0, 0]))
    for norm, slope in ((1, 2.0), (2, float(weight.norm())), (math.inf, 3.5)):
        reached = attacked(losses_of(model, y, (3,), "squared_error", "loss"), x, Ball(0.5, norm))
        assert reached == pytest.approx((residual + 0.5 * slope) ** 2, rel=1e-9)
