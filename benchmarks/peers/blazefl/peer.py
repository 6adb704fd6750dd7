"""The contestant: BlazeFL, by the FedAvg that it recommends: a pool of threads, one per processor."""

import os

import torch
from blazefl.contrib.fedavg import FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer
from handed import compete
from nets import make_net


class Models:
    """A selector that knows the work's model."""

    def __init__(self, work):
        self.work = work

    def select_model(self, name):
        return make_net(name, self.work.params)


class Handed:
    """The clients' examples, in the batches that the work asks for, round by round."""

    def __init__(self, work, shards):
        self.work, self.shards, self.round = work, shards, 0

    def get_dataloader(self, type_, cid, batch_size, generator):
        x, y = self.shards[cid]
        batches = self.work.batches(self.round, self.work.cohorts[self.round].tolist().index(cid))
        return ((x[rows], y[rows]) for rows in map(torch.from_numpy, batches))


class Server(FedAvgBaseServerHandler):
    def sample_clients(self):
        return self.dataset.work.cohorts[self.round].tolist()


def prepare(work):
    processors = len(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    clients = range(len(work.offsets) - 1)
    shards = [tuple(map(torch.from_numpy, work.client(client))) for client in clients]
    model, models = work.about["model"], Models(work)
    cohort, rate = work.cohorts.shape[1], work.about["learning_rate"]

    def train(rounds):
        data = Handed(work, shards)
        server = Server(models, model, data, rounds, len(clients), 1.0, "cpu", 64, 0)
        server.num_clients_per_round = cohort
        trainer = FedAvgThreadPoolClientTrainer(models, model, data, "cpu", len(clients), 1, 64, rate, 0, processors)
        while not server.if_stop():
            data.round = server.round
            trainer.local_process(server.downlink_package(), server.sample_clients())
            for package in trainer.uplink_package():
                server.load(package)
        return {name: value.numpy() for name, value in server.model.state_dict().items()}

    return train


compete(prepare)
