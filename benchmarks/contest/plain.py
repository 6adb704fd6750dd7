"""The opponent: WAFL and FedAvg as a careful person writes them in plain PyTorch, one client after another.

It gets the cohorts and batches that wafl drew, so both do the same work and end with the same parameters.
"""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.contest.shared.handed import Params, Train, Work, compete
from benchmarks.contest.work import opened

Rows = Callable[[int, int], Iterator[Tensor]]


def train(
    model: nn.Module,
    clients: list[tuple[Tensor, Tensor]],
    cohorts: list[list[int]],
    batches: Rows,
    learning_rate: float,
    gamma: float | None,
    steps: int,
) -> nn.Module:
    """Return the trained model; ``batches(round, client)`` yields the rows of each local step; no gamma is FedAvg."""
    server = copy.deepcopy(model)
    for round_, cohort in enumerate(cohorts):
        total = sum(len(clients[client][0]) for client in cohort)
        mean = {name: torch.zeros_like(value) for name, value in server.state_dict().items()}
        for client in cohort:
            local = copy.deepcopy(server)
            optimizer = torch.optim.SGD(local.parameters(), lr=learning_rate)
            x, y = clients[client]
            for rows in batches(round_, client):
                inputs, labels = x[rows], y[rows]
                if gamma is not None:
                    inputs = ascend(local, inputs, labels, gamma, steps)
                optimizer.zero_grad()
                functional.cross_entropy(local(inputs), labels).backward()
                optimizer.step()
            for name, value in local.state_dict().items():
                mean[name] += value * (len(x) / total)
        server.load_state_dict(mean)
    return server


def ascend(model: nn.Module, x: Tensor, y: Tensor, gamma: float, steps: int) -> Tensor:
    """Return the inputs after gradient ascent on ``loss - gamma ||x_adv - x||^2`` with the step ``1 / (2 gamma)``."""
    x_adv = x.clone()
    for _ in range(steps):
        x_adv.requires_grad_(True)
        objective = functional.cross_entropy(model(x_adv), y, reduction="sum") - gamma * (x_adv - x).square().sum()
        (gradient,) = torch.autograd.grad(objective, x_adv)
        x_adv = x_adv.detach() + gradient / (2.0 * gamma)
    return x_adv


def prepare(work: Work) -> Train:
    """Train by the plain loop, with the cohorts and batches of the work."""
    (clients, model), about = opened(work), work.about
    device = about["device"]
    pairs = map(clients.train.of, range(clients.num_clients))
    shards = [(x.to(device), y.to(device)) for x, y in pairs]
    model.to(device)
    cohorts: list[list[int]] = work.cohorts.tolist()

    def batches(round_: int, client: int) -> Iterator[Tensor]:
        return (torch.from_numpy(rows).to(device) for rows in work.batches(round_, cohorts[round_].index(client)))

    def rounds_of(rounds: int) -> Params:
        settings = about["learning_rate"], about["gamma"], about["steps"]
        trained = train(model, shards, cohorts[:rounds], batches, *settings)
        return {name: value.cpu().numpy() for name, value in trained.state_dict().items()}

    return rounds_of


if __name__ == "__main__":
    compete(prepare)
