"""The contestant: Apple's pfl-research, by its simulated backend, PyTorch models and FederatedAveraging."""

import logging
from itertools import chain

import torch
from handed import compete
from nets import make_net
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import nn

logging.disable(logging.CRITICAL)


class Never(int):
    """How often models are tested: pfl would test in round 0 at any frequency."""

    def __rmod__(self, iteration):
        return 1


class Handed(Dataset):
    """A user's examples, in the batches that the work asks for."""

    def __init__(self, x, y, batches):
        super().__init__((x, y))
        self.handed = batches

    def iter(self, batch_size):
        x, y = self.raw_data
        return ((x[rows], y[rows]) for rows in self.handed)


class Net(nn.Sequential):
    """A model with the loss and the metrics that pfl asks for."""

    def loss(self, x, y, is_eval=False):
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y):
        return {}


def prepare(work):
    users = [tuple(map(torch.from_numpy, work.client(client))) for client in range(len(work.offsets) - 1)]

    def train(rounds):
        net = Net(*make_net(work.about["model"], work.params))
        turns = iter([(r, index) for r in range(rounds) for index in range(work.cohorts.shape[1])])
        order = chain(work.cohorts[:rounds].reshape(-1).tolist())

        def user(client):
            return Handed(*users[client], [torch.from_numpy(rows) for rows in work.batches(*next(turns))])

        data = FederatedDataset(user, lambda: next(order))
        model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
        FederatedAveraging().run(
            NNAlgorithmParams(rounds, Never(1), work.cohorts.shape[1], 0),
            SimulatedBackend(training_data=data, val_data=None),
            model,
            NNTrainHyperParams(
                local_batch_size=64, local_num_epochs=1, local_learning_rate=work.about["learning_rate"]
            ),
        )
        return {name: value.detach().cpu().numpy() for name, value in net.state_dict().items()}

    return train


compete(prepare)
