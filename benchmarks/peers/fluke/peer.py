"""The contestant: fluke, by its FedAVG, with clients and a server that take the batches and cohorts they are handed."""

import torch

try:
    import torchvision  # noqa: F401
except (
    RuntimeError
):  # its wheel does not load next to every wheel of torch, and fluke imports it: they are never called here
    OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.server import Server
from handed import compete
from nets import make_net
from torch import nn


class Handed(FastDataLoader):
    """A client's examples, in the batches that the work asks for, round by round."""

    def __init__(self, x, y, rounds):
        super().__init__(x, y, num_labels=10, batch_size=64)
        self.rounds = rounds

    def __iter__(self):
        x, y = self.tensors
        return ((x[rows], y[rows]) for rows in map(torch.from_numpy, next(self.rounds)))


def prepare(work):
    FlukeENV().set_device("cpu")
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)
    shards = [tuple(map(torch.from_numpy, work.client(client))) for client in range(len(work.offsets) - 1)]
    cohorts = work.cohorts.tolist()

    class Drawn(Server):
        def get_eligible_clients(self, eligible_perc):
            return [self.clients[client] for client in next(self.drawn)]

    class FedAvg(FedAVG):
        def get_server_class(self):
            return Drawn

    def batches(client, rounds):
        asked = [round_ for round_ in range(rounds) if client in cohorts[round_]]
        return (work.batches(round_, cohorts[round_].index(client)) for round_ in asked)

    def train(rounds):
        loaders = [Handed(*shard, batches(client, rounds)) for client, shard in enumerate(shards)]
        data = DummyDataContainer(loaders, [None] * len(loaders), None, num_classes=10)
        client = {
            "batch_size": 64,
            "local_epochs": 1,
            "loss": nn.CrossEntropyLoss,
            "optimizer": {"name": "SGD", "lr": work.about["learning_rate"]},
            "scheduler": {"step_size": 1, "gamma": 1},
        }
        settings = DDict(model=make_net(work.about["model"], work.params), client=client, server={"weighted": True})
        algorithm = FedAvg(len(loaders), DataSplitter(data), settings)
        algorithm.server.drawn = iter(cohorts[:rounds])
        algorithm.run(rounds, len(cohorts[0]) / len(loaders))
        return {name: value.detach().numpy() for name, value in algorithm.server.model.state_dict().items()}

    return train


compete(prepare)
