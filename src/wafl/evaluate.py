"""How good a model is on its clients' test data: clean, attacked, shifted; per client and pooled."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from wafl.attacks import Attack
from wafl.checks import check_seed
from wafl.federation import Federation
from wafl.random import Purpose, choose
from wafl.run import Run
from wafl.surrogate import single_lane
from wafl.task import Loss, Problem


@dataclass(frozen=True)
class ClientScore:
    """One client's test result; ``accuracy`` is None for a regression."""

    name: str
    accuracy: float | None
    loss: float
    num_examples: int
    attacked: bool


@dataclass(frozen=True)
class Score:
    """``accuracy`` and ``loss`` over all test examples pooled; ``per_client`` in the order of the clients.

    Clients without test examples are left out.
    """

    accuracy: float | None
    loss: float
    per_client: list[ClientScore] = field(repr=False)
    attack: str = "none"

    @property
    def worst_client(self) -> ClientScore:
        """The client with the lowest accuracy, or in a regression the highest loss."""
        return min(self.per_client, key=lambda client: -client.loss if client.accuracy is None else client.accuracy)


def evaluate(
    model: Run | nn.Module,
    clients: Federation,
    *,
    attack: Attack | None = None,
    attacked: float = 1.0,
    seed: int = 0,
    loss: Loss | None = None,
) -> Score:
    """Test on every client's held-out examples, a share ``attacked`` of the clients under ``attack``.

    The attacked clients are drawn from the seed, so that a smaller share is part of a larger one. A
    :class:`wafl.WassersteinShift` moves all attacked clients' examples as one distribution.
    """
    if not 0.0 <= attacked <= 1.0:
        raise ValueError(f"attacked={attacked} is a share of the clients and must lie in [0, 1]")
    check_seed(seed)
    present = [client for client, count in enumerate(clients.test.num_examples.tolist()) if count > 0]
    if not present:
        raise ValueError("no client has test examples: make the federation with test_fraction > 0")
    victims: set[int] = set()
    if attack is not None:
        victims = {present[i] for i in choose(seed, Purpose.ATTACKED, len(present), round(attacked * len(present)))}
    problem, x, y = single_lane(model, clients.test.x, clients.test.y, loss)
    if attack is not None and victims:
        rows = torch.cat(
            [torch.arange(*clients.test.offsets[client : client + 2].tolist()) for client in sorted(victims)]
        )
        rows = rows.to(x.device)
        x = x.clone()
        x[:, rows] = attack.move(problem, x[:, rows], y[:, rows], seed)
    correct, losses = _test(problem, x, y, clients.num_classes is not None)
    if not bool(torch.isfinite(losses).all()):
        row = int((~torch.isfinite(losses)).nonzero()[0])
        client = int(torch.searchsorted(clients.test.offsets, row, right=True)) - 1
        raise ValueError(
            f"the loss is NaN or infinite on {clients.names[client]}: the model's parameters are not usable"
        )
    scores = [
        ClientScore(
            clients.names[client],
            None if correct is None else float(correct[rows].mean()),
            float(losses[rows].mean()),
            rows.stop - rows.start,
            client in victims,
        )
        for client in present
        for rows in [slice(*clients.test.offsets[client : client + 2].tolist())]
    ]
    return Score(
        None if correct is None else float(correct.mean()),
        float(losses.mean()),
        scores,
        "none" if attack is None else attack.describe(clients.unit),
    )


def _test(problem: Problem, x: Tensor, y: Tensor, classes: bool) -> tuple[Tensor | None, Tensor]:
    correct: list[Tensor] = []
    losses: list[Tensor] = []
    for rows in torch.arange(x.shape[1], device=x.device).split(4096):
        outputs = problem.task.outputs(problem.params, x[:, rows])[0].double()
        losses.append(problem.output_loss.value(outputs, y[0, rows]))
        if classes:
            correct.append((outputs.argmax(-1) == y[0, rows]).double())
    return torch.cat(correct) if classes else None, torch.cat(losses)
