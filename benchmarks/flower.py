"""Seconds per round on Flower, simulated and deployed on loopback, against the embedded engine; and bytes per round.

    python -m benchmarks.flower [--smallest] [--rounds 3] [--model mlr cnn] [--only traffic]
    python -m benchmarks.flower --only crowd [--nodes 50 200 1000]

Ten clients of 200 random images of 28 x 28 on two nodes, FedAvg and DRFA, one local epoch. The opponent of each figure
is the embedded engine on the same clients, whose parameters must be the same. ``crowd`` simulates many nodes,
each with one client of 20 such images, all of which take part in every round.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from examples.flower_hospitals.deployed import Deployed
from flwr.app import RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

import wafl
from benchmarks import options
from wafl.base.random import Key, Purpose, uniform
from wafl.config.experiment import Experiment
from wafl.config.read import parse_experiment
from wafl.flower.ops.app import simulate, write_app
from wafl.flower.wire.values import NodeQuery, encode_query, encode_replies
from wafl.parts.messages import Query
from wafl.parts.schedule import LocalWork
from wafl.results.saved import load_run
from wafl.studies.study import Study
from wafl.tasks.structured import make_task
from wafl.train.client_task import ClientTask
from wafl.train.lanes.lanes import Lanes

CLIENTS, EXAMPLES, NODES = 10, 200, 2
CROWD = "WAFL_BENCHMARK_CROWD"


def clients() -> wafl.Federation:
    """Make the data of which every node takes its part."""
    x = uniform(Key.of(0), Purpose.SPLIT, CLIENTS * EXAMPLES * 784).float().view(CLIENTS, EXAMPLES, 1, 28, 28)
    y = (x.flatten(2)[..., :40].sum(-1) * 10).long() % 10
    return wafl.Federation.from_arrays(zip(x, y, strict=True), num_classes=10)


def crowd() -> wafl.Federation:
    """Return the environment's number of clients, each with 20 images."""
    count, examples = int(os.environ[CROWD]), 20
    x = uniform(Key.of(0), Purpose.SPLIT, count * examples * 784).float().view(count, examples, 1, 28, 28)
    y = (x.flatten(2)[..., :40].sum(-1) * 10).long() % 10
    return wafl.Federation.from_arrays(zip(x, y, strict=True), num_classes=10)


def simulate_crowd(nodes: int, rounds: int, base: Path) -> None:
    """Seconds per round of MLR and FedAvg with one client per node."""
    os.environ[CROWD] = str(nodes)
    folders: dict[str, Path] = {}
    for engine in ("embedded", "flower-sim"):
        content: dict[str, Any] = {
            "name": f"crowd-{engine}",
            "engine": engine,
            "data": {"source": "flower:crowd"},
            "schedule": {"rounds": rounds, "local_epochs": 1, "learning_rate": 0.05},
            "methods": [{"method": "FedAvg"}],
            "attack": {"kind": "none"},
            "flower": {"nodes": nodes, "round_timeout": 600.0},
        }
        study = Study.create(parse_experiment(content, "benchmark"), base / engine, Path(__file__).parent)
        begun = time.perf_counter()
        simulate(study) if engine == "flower-sim" else study.run()
        folders[engine] = base / engine
        took = time.perf_counter() - begun
        print(f"{nodes} nodes, {engine}: {seconds(folders[engine], 'fedavg'):.3f} s per round, {took:.1f} s in all")
    apart = difference(folders["embedded"], folders["flower-sim"], "fedavg")
    print(f"{nodes} nodes: parameters differ by at most {apart:.1e}")


def experiment(model: str, rounds: int, engine: str) -> Experiment:
    content: dict[str, Any] = {
        "name": f"{model}-{engine}",
        "engine": engine,
        "data": {"source": "flower:clients"},
        "model": {"kind": model},
        "schedule": {"rounds": rounds, "local_epochs": 1, "learning_rate": 0.05},
        "methods": [{"method": "FedAvg"}, {"method": "DRFA"}],
        "attack": {"kind": "none"},
        "flower": {"nodes": NODES, "min_nodes": NODES, "round_timeout": 300.0},
        # Each node speaks for its half of the clients, and nothing is clipped, as in the other engines.
        "caps": {"clients_per_node": CLIENTS, "client_share": 1.0},
        "tolerance": {"clip": math.inf},
    }
    return parse_experiment(content, "benchmark")


def own_data(part: int, folder: Path) -> Path:
    """Return a folder with the clients of a node, each as a file."""
    folder.mkdir(parents=True)
    every = clients()
    for client in range(part, CLIENTS, NODES):
        (x, y), (x_test, y_test) = every.train.of(client), every.test.of(client)
        arrays: dict[str, Any] = {"x": x, "y": y, "x_test": x_test, "y_test": y_test}
        np.savez(folder / f"client {client}.npz", **arrays)
    return folder


def deploy(described: Experiment, base: Path) -> Path:
    write_app(base / "app", described)
    with Deployed(base / "flower") as loopback:
        for part in range(NODES):
            loopback.add_node(str(part), {"data": str(own_data(part, base / "data" / str(part)))})
        loopback.wait_for_nodes(NODES)
        status = loopback.submit(base / "app", {"folder": str(base / "study")}).wait(1800.0)
    if status != "finished:completed":
        raise RuntimeError(f"the deployment ended as {status}: see {base}")
    return base / "study"


def seconds(study: Path, method: str) -> float:
    """Return the median over the rounds but the first, in which processes warm up."""
    return statistics.median(record.seconds for record in load_run(study / method).history[1:])


def difference(one: Path, other: Path, method: str) -> float:
    a, b = (load_run(study / method).params for study in (one, other))
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def times(model: str, rounds: int, base: Path) -> None:
    here = Study.create(experiment(model, rounds, "embedded"), base / "embedded", Path(__file__).parent)
    here.run()
    simulated = Study.create(experiment(model, rounds, "flower-sim"), base / "simulated", Path(__file__).parent)
    simulate(simulated)
    deployed = deploy(experiment(model, rounds, "flower"), base / "deployed")
    for method in ("fedavg", "drfa"):
        alone = seconds(base / "embedded", method)
        for name, study in (("simulation", base / "simulated"), ("deployment", deployed)):
            took, apart = seconds(study, method), difference(base / "embedded", study, method)
            print(
                f"{model} {method:<7} {name:<11} {took:7.2f} s per round, embedded {alone:7.3f} s: "
                f"{took / alone:6.0f} times; parameters differ by at most {apart:.1e}"
            )


def size(content: RecordDict) -> int:
    """Bytes of a message's content, as Flower cuts it into objects and sends them."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(content).values())


def traffic(model: str) -> None:
    federation = clients()
    module = wafl.models.mlr(federation) if model == "mlr" else wafl.models.cnn(federation)
    task = make_task(module)
    start = task.initial()
    model_bytes = start.numel() * start.element_size()
    held = tuple(range(0, CLIENTS, NODES))
    scalars = {"learning_rate": 0.05, "momentum": 0.0, "weight_decay": 0.0}
    lanes = Lanes(ClientTask(task, None, LocalWork(2, None, 64), federation.train))
    cases: list[tuple[str, int | None, Literal["train", "loss"]]] = [
        ("FedAvg", None, "train"),
        ("DRFA", 1, "train"),
        ("DRFA", None, "loss"),
    ]
    for method, step, kind in cases:
        weights = torch.ones(len(held), dtype=torch.float64)
        iterates = {} if step is None else {"snapshot": step}
        query = Query(kind, 0, 0, held, weights, start, scalars, iterates=iterates)
        for sums in (False, True) if kind == "train" else (False,):
            names = {client: f"client {client}" for client in held}
            sent = NodeQuery(method.lower(), (0,), (query,), names, 10, "0" * 64, -1, sums, True)
            down, up = size(encode_query(sent)), size(encode_replies(sent, lanes.run([query])))
            units = 1 if sums else len(held)
            vectors = 2 if step is not None else 1
            per = "node" if sums else "client"
            print(
                f"{model} {method:<6} {kind:<5} {'partial sums' if sums else 'each update':<12} down "
                f"{down / model_bytes:.3f} models per node; up {up / model_bytes / units:.3f} per {per}"
                + (f" ({vectors} vectors)" if vectors > 1 else "")
            )


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", nargs="+", choices=("mlr", "cnn"), default=["mlr", "cnn"])
    parser.add_argument("--only", choices=("traffic", "times", "crowd"), help="traffic starts no process")
    parser.add_argument("--nodes", type=int, nargs="+", default=[50, 200, 1000], help="sizes of the crowd")
    given = options.read(parser, argv, rounds=2, model=["mlr"], nodes=[3])
    here = Path(__file__).parent
    places = [str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)  # where the nodes find ``flower:clients``, and it finds examples
    print(
        f"{CLIENTS} clients of {EXAMPLES} examples on {NODES} nodes; torch {torch.__version__}, {os.cpu_count()} cores"
    )
    for model in given.model if given.only in (None, "traffic") else ():
        traffic(model)
    for model in given.model if given.only in (None, "times") else ():
        with tempfile.TemporaryDirectory() as folder:
            times(model, given.rounds, Path(folder))
    for nodes in given.nodes if given.only in (None, "crowd") else ():
        with tempfile.TemporaryDirectory() as folder:
            simulate_crowd(nodes, given.rounds, Path(folder))


if __name__ == "__main__":
    main()
