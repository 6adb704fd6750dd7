"""The contestant: Flower's simulation, with the strategy FedAvg and a ClientApp as its PyTorch quickstart has it.

Flower draws the clients of a round itself, so the batches are the work's but the cohorts are not. Its processes
are stopped and started anew by every simulation: what that takes counts as starting up.
"""

import logging
import os
import sys
import time

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from handed import Work
from torch import nn

PATH = os.environ.get("WORK") or os.environ.setdefault("WORK", sys.argv[1])
logging.getLogger("flwr").setLevel(logging.ERROR)
client_app, server_app = ClientApp(), ServerApp()
CACHE, TIMES = {}, {}


def work():
    if "work" not in CACHE:
        CACHE["work"] = Work.read(PATH)
    return CACHE["work"]


def make_net():
    if work().about["model"] == "mlr":
        return nn.Sequential(nn.Flatten(), nn.Linear(*work().params["1.weight"].shape[::-1]))
    shapes = [work().params[f"{layer}.weight"].shape for layer in (0, 3, 7, 9)]
    first, second = (nn.Conv2d(shape[1], shape[0], 5, padding=2) for shape in shapes[:2])
    third, last = (nn.Linear(shape[1], shape[0]) for shape in shapes[2:])
    pool = (nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(first, *pool, second, *pool, nn.Flatten(), third, nn.ReLU(), last)


@client_app.train()
def train(message, context):
    torch.set_num_threads(1)
    round_ = (message.content["config"]["server-round"] - 1) % work().rounds
    x, y = map(torch.from_numpy, work().client(context.node_config["partition-id"]))
    net = make_net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=work().about["learning_rate"])
    for rows in map(
        torch.from_numpy, work().batches(round_, context.node_config["partition-id"] % work().cohorts.shape[1])
    ):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict(content), reply_to=message)


class Timed(FedAvg):
    """FedAvg that looks at the clock when its second round begins and when its last has ended."""

    def configure_train(self, server_round, arrays, config, grid):
        if server_round == 2:
            TIMES["began"], TIMES["started"] = time.perf_counter(), time.time()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        result = super().aggregate_train(server_round, replies)
        TIMES["ended"] = time.perf_counter()
        return result


@server_app.main()
def main(grid, context):
    clients, cohort = len(work().offsets) - 1, work().cohorts.shape[1]
    strategy = Timed(fraction_train=cohort / clients, fraction_evaluate=0.0, min_available_nodes=clients)
    start = ArrayRecord({name: torch.from_numpy(value) for name, value in work().params.items()})
    CACHE["params"] = strategy.start(grid, start, num_rounds=work().rounds + 1).arrays.to_torch_state_dict()


if __name__ == "__main__":
    import json
    import resource

    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(work().offsets) - 1,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": cores}},
    )
    np.savez(sys.argv[2], **{name: value.numpy() for name, value in CACHE["params"].items()})
    peak = 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    wall = TIMES["ended"] - TIMES["began"]
    startup = TIMES["started"] - float(os.environ["WAFL_BENCH_BEGAN"])
    print(json.dumps({"startup": startup, "wall": wall, "cpu": None, "peak_bytes": peak}))
