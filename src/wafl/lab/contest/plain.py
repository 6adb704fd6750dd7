"""The contestant: a plain loop in PyTorch."""

from collections.abc import Iterator

import torch
from torch import Tensor

from wafl.lab.contest import sequential
from wafl.lab.contest.shared.handed import Params, Train, Work, compete
from wafl.lab.contest.work import opened


def prepare(work: Work) -> Train:
    """A training by the plain loop, with the cohorts and batches of the work."""
    (clients, model), about = opened(work), work.about
    shards = [clients.train.of(client) for client in range(clients.num_clients)]
    cohorts: list[list[int]] = work.cohorts.tolist()

    def batches(round_: int, client: int) -> Iterator[Tensor]:
        return map(torch.from_numpy, work.batches(round_, cohorts[round_].index(client)))

    def train(rounds: int) -> Params:
        settings = about["learning_rate"], about["gamma"], about["steps"]
        trained = sequential.train(model, shards, cohorts[:rounds], batches, *settings)
        return {name: value.numpy() for name, value in trained.state_dict().items()}

    return train


if __name__ == "__main__":
    compete(prepare)
