"""The contestant: Flower's simulation, with the strategy FedAvg and a ClientApp as its PyTorch quickstart has it.

Flower draws the nodes of a round, and each is told which client of the work it is. Its processes are stopped and
started anew by every simulation: what that takes counts as starting up, and so does a first round, after which
training begins again. Processor time and memory cover all its processes.
"""

import contextlib
import json
import logging
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from handed import Work
from nets import make_net
from torch import nn

PATH = os.environ.get("WORK") or os.environ.setdefault("WORK", sys.argv[1])
logging.getLogger("flwr").setLevel(logging.ERROR)
client_app, server_app = ClientApp(), ServerApp()
CACHE, TIMES = {}, {}


def work():
    if "work" not in CACHE:
        CACHE["work"] = Work.read(PATH)
    return CACHE["work"]


@client_app.train()
def train(message, context):
    torch.set_num_threads(1)
    round_, index = message.content["config"]["round"], message.content["config"]["index"]
    x, y = map(torch.from_numpy, work().client(work().cohorts[round_, index]))
    net = make_net(work().about["model"], work().params)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=work().about["learning_rate"])
    for rows in map(torch.from_numpy, work().batches(round_, index)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict(content), reply_to=message)


def start():
    return ArrayRecord({name: torch.from_numpy(value) for name, value in work().params.items()})


def usage():
    """Return the processor seconds and the bytes of this process and its descendants."""
    parents, seconds = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[path.parent.name] = fields[1]
            seconds[path.parent.name] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    ours = {str(os.getpid())}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    memory = 0
    for pid in ours:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            memory += 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return sum(seconds.get(pid, 0) for pid in ours), memory


class Timed(FedAvg):
    """FedAvg that starts again, and looks at the clocks, when its second round begins; and when its last has ended."""

    def configure_train(self, server_round, arrays, config, grid):
        if server_round == 2:
            arrays = start()
            TIMES["started"], TIMES["wall"], TIMES["cpu"] = time.time(), time.perf_counter(), usage()[0]
        messages = super().configure_train(server_round, arrays, config, grid)
        for index, message in enumerate(messages):
            told = ConfigRecord({"round": max(server_round - 2, 0), "index": index})
            message.content = RecordDict({**message.content, "config": told})
        return messages

    def aggregate_train(self, server_round, replies):
        result = super().aggregate_train(server_round, replies)
        if server_round == work().rounds + 1:
            TIMES["wall"] = time.perf_counter() - TIMES["wall"]
            seconds, TIMES["peak"] = usage()
            TIMES["cpu"] = seconds - TIMES["cpu"]
        return result


@server_app.main()
def main(grid, context):
    clients, cohort = len(work().offsets) - 1, work().cohorts.shape[1]
    strategy = Timed(
        fraction_train=cohort / clients, fraction_evaluate=0.0, min_train_nodes=cohort, min_available_nodes=clients
    )
    CACHE["params"] = strategy.start(grid, start(), num_rounds=work().rounds + 1).arrays.to_torch_state_dict()


if __name__ == "__main__":
    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(work().offsets) - 1,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": cores}},
    )
    np.savez(sys.argv[2], **{name: value.numpy() for name, value in CACHE["params"].items()})
    startup = TIMES["started"] - float(os.environ["WAFL_BENCH_BEGAN"])
    print(json.dumps({"startup": startup, "wall": TIMES["wall"], "cpu": TIMES["cpu"], "peak_bytes": TIMES["peak"]}))
