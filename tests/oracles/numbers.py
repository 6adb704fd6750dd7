"""Results of training, to show that a refactoring changes no number.

``python -m tests.oracles.numbers before.npz`` writes the parameters, losses, cohorts, weights and gammas of every
method (embedded, swept, with a learned gamma, with faults, on a Flower grid without processes); after the change,
``python -m tests.oracles.numbers after.npz --against before.npz`` says whether all bits are the same. The bits depend
on the machine; ``numbers.json`` holds small cases that ``test_numbers_written_down.py`` compares everywhere, cohorts
and batches exactly and parameters to 1e-5. ``--write`` rewrites it, for a change that is meant to change numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wafl
from wafl.base.random import Key
from wafl.parts.schedule import LocalWork
from wafl.train.batches import draw_batches

GOLDEN = Path(__file__).with_name("numbers.json")
weights = wafl.weights
METHODS: dict[str, wafl.Method] = {
    "FedAvg": wafl.FedAvg(),
    "FedAvg, uniform": wafl.FedAvg(client_weights=weights.uniform()),
    "WAFL": wafl.WAFL(gamma=0.5),
    "WAFL, l_inf": wafl.WAFL(gamma=0.5, norm=math.inf, steps=5),
    "WAFL, l1": wafl.WAFL(gamma=0.5, norm=1, steps=5),
    "WAFL, bounds": wafl.WAFL(gamma=0.5, bounds=(0, 1), restarts=1),
    "WAFL, labels": wafl.WAFL(gamma=1.0, label_cost=2.0),
    "WAFL, radius": wafl.WAFL(radius=1.0),
    "WAFL, strict": wafl.WAFL(radius=1.0, strict=True),
    "WAFL, clients": wafl.WAFL(radius=0.3, cost_matrix="clients"),
    "WAFL, snapshot": wafl.WAFL(gamma=1.0, client_weights=weights.snapshot(0.05)),
    "FedPGM": wafl.FedPGM(epsilon=0.1, steps=4, random_start=True),
    "FedPGM, l2": wafl.FedPGM(epsilon=0.5, norm=2, random_start=True),
    "FedFGSM": wafl.FedFGSM(),
    "FedRobust": wafl.FedRobust(step_size=0.1),
    "DRFA": wafl.DRFA(weights_step=0.05),
    "FedProx": wafl.FedProx(mu=0.5),
    "SCAFFOLD": wafl.SCAFFOLD(),
    "FedAvgM": wafl.FedAvgM(),
    "FedAdam": wafl.FedAdam(rate=0.1),
    "FedYogi": wafl.FedYogi(rate=0.1),
    "WAFL, Adam": wafl.WAFL(radius=1.0, server=wafl.servers.adam(0.1)),
    "WAFL, control variates": wafl.WAFL(gamma=0.5, local=wafl.local.control_variates()),
}
ALL_AT_ONCE: dict[str, wafl.Method] = {
    "AFL": wafl.AFL(),
    "WAFL, agnostic": wafl.WAFL(gamma=1.0, client_weights=weights.agnostic(0.2)),
}
FAILING = wafl.Faults(dropout=0.2, late=0.1, nan=0.1, infinity=0.05, wrong_shape=0.05, seed=3)
LENIENT = wafl.Tolerance(min_replies=0.3, attempts=5)


def small_cases() -> Iterator[tuple[str, wafl.Run]]:
    """Return six clients of unequal size with four features and three classes."""
    generator = np.random.default_rng(0)
    sizes = (9, 4, 12, 7, 5, 10)
    pairs = [(generator.random((size, 4), dtype=np.float32), np.arange(size) % 3) for size in sizes]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    yield from _cases(clients, wafl.models.mlr(clients), {"rounds": 3, "cohort": 4, "local_epochs": 1, "batch_size": 4})


def large_cases() -> Iterator[tuple[str, wafl.Run]]:
    """Digits, a linear model and a network."""
    clients = wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=0)
    common = {"rounds": 4, "cohort": 6, "local_epochs": 1, "batch_size": 16}
    alike = ("WAFL, clients",)  # these clients' classes do not differ, so the ball has no cost matrix
    yield from _cases(clients, wafl.models.mlr(clients), common, alike)
    turns = [wafl.shifts.rotation(severity=angle) for angle in (0.0, 0.2, 0.4)]
    turned = wafl.load_dataset("digits").partition(num_clients=9, iid=True, skew=turns, seed=0)
    for name in alike:
        yield name, wafl.fit(wafl.models.mlr(turned), turned, METHODS[name], **common, learning_rate=0.1)
    network = wafl.models.cnn(clients, channels=(4, 6))
    for name in ("FedAvg", "WAFL", "WAFL, l_inf", "WAFL, radius", "FedPGM", "FedRobust", "DRFA", "SCAFFOLD", "FedAdam"):
        schedule = {**common, "rounds": 2, "learning_rate": 0.1}
        yield f"network: {name}", wafl.fit(network, clients, METHODS[name], **schedule)
    for index, run in enumerate(wafl.sweep(network, clients, wafl.WAFL(), {"gamma": [0.5, 1.0]}, **schedule)):
        yield f"network: sweep {index}", run


def _cases(
    clients: wafl.Federation, model: Any, common: dict[str, Any], left_out: Sequence[str] = ()
) -> Iterator[tuple[str, wafl.Run]]:
    common = {**common, "learning_rate": 0.1}
    for name, method in METHODS.items():
        if name not in left_out:
            yield name, wafl.fit(model, clients, method, **common)
    for name, method in ALL_AT_ONCE.items():
        schedule = {"rounds": 5, "local_steps": 1, "batch_size": 4, "learning_rate": 0.1}
        yield name, wafl.fit(model, clients, method, **schedule)
    tuned = {"momentum": 0.5, "weight_decay": 0.01, "server_learning_rate": 0.7}
    yield "momentum", wafl.fit(model, clients, wafl.WAFL(gamma=0.5), **common, **tuned)
    for name, method, grid in (
        ("gamma", wafl.WAFL(), {"gamma": [0.1, 0.5], "seed": [0, 1]}),
        ("radius", wafl.WAFL(), {"radius": [0.3, 1.0]}),
        ("weights_step", wafl.DRFA(), {"weights_step": [0.01, 0.1]}),
    ):
        for index, run in enumerate(wafl.sweep(model, clients, method, grid, **common)):
            yield f"sweep of {name} {index}", run
    for name in ("FedAvg", "WAFL, radius", "FedRobust", "DRFA", "SCAFFOLD"):
        run = wafl.fit(model, clients, METHODS[name], **common, faults=FAILING, tolerance=LENIENT)
        yield f"faults: {name}", run


def grid_cases() -> Iterator[tuple[str, wafl.Run]]:
    """Train methods on nodes in this process, with real messages between nodes and server."""
    from tests.oracles import flower_fakes as fakes
    from wafl.results.saved import load_run

    tables = [
        {"method": "FedAvg"}, {"method": "AFL"}, {"method": "DRFA"}, {"method": "FedRobust", "step_size": 0.1},
        {"method": "WAFL", "gamma": [1.0, 2.5]}, {"method": "WAFL", "name": "wafl-radius", "radius": 0.3},
        {"method": "FedPGM", "random_start": True, "steps": 3}, {"method": "SCAFFOLD"}, {"method": "FedAdam"},
    ]  # fmt: skip
    schedule = {"rounds": 2, "cohort": 4, "local_steps": 2, "batch_size": 2, "learning_rate": 0.1}
    flower = {"nodes": 3, "wait": 5.0, "round_timeout": 20.0}
    experiment = {"seeds": [3], "schedule": schedule, "attack": {"kind": "none"}, "flower": flower, "methods": tables}
    clients = fakes.make_clients((3, 8, 6, 5, 10, 2))
    nodes = [["c03"], ["c00", "c05", "c01"], ["c02", "c04"]]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        grid = fakes.make_grid(fakes.virtual(patch), Path(folder), clients, nodes, experiment)
        fakes.train(grid, experiment, Path(folder) / "study")
        for file in sorted((Path(folder) / "study").rglob("run.json")):
            yield f"grid: {file.parent.name}", load_run(file.parent)


def arrays(name: str, run: wafl.Run) -> dict[str, np.ndarray[Any, Any]]:
    """Return all results of a run, as arrays."""
    result = {f"{name}/{key}": value.numpy() for key, value in run.params.items()}
    result[f"{name}/client_weights"] = run.client_weights.numpy()
    for column in ("loss", "gamma", "achieved_radius"):
        values = [math.nan if value is None else value for value in run.history.column(column)]
        result[f"{name}/{column}"] = np.array(values, dtype=np.float64)
    result[f"{name}/cohort"] = np.concatenate([np.array([*record.cohort, -1]) for record in run.history])
    return result


def plain(run: wafl.Run) -> dict[str, Any]:
    """Return a run as JSON: its cohorts, and its parameters as one list."""
    params = torch.cat([value.flatten() for value in run.params.values()])
    return {"cohorts": [list(record.cohort) for record in run.history], "params": params.tolist()}


def batches() -> list[list[list[int]]]:
    """Return the examples of two lanes of unequal size in three local epochs; -1 is padding."""
    key = Key(*(torch.tensor(part) for part in ([7, 7], [2, 2], [0, 5], [0, 0])))
    drawn = draw_batches(LocalWork(None, 3, 4), key, torch.tensor([10, 5]), 4)
    return torch.where(drawn.real, drawn.index, -1).tolist()


def golden() -> dict[str, Any]:
    """Return the content of ``numbers.json``."""
    return {"batches": batches(), "runs": {name: plain(run) for name, run in small_cases()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, nargs="?", help="where to write all numbers (.npz)")
    parser.add_argument("--against", type=Path, help="numbers from before the change")
    parser.add_argument("--write", action="store_true", help=f"rewrite {GOLDEN.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.write:
        GOLDEN.write_text(json.dumps(golden()) + "\n")
    if options.output is None:
        if not options.write:
            parser.error("give the file that the numbers are written to, such as before.npz")
        return
    result: dict[str, Any] = {}
    for cases in (small_cases, large_cases, grid_cases):
        for name, run in cases():
            result |= arrays(f"{cases.__name__}: {name}", run)
    np.savez(options.output, **result)
    if options.against is None:
        return
    before = np.load(options.against)
    missing = sorted(set(before.files) - set(result))
    changed = [name for name in before.files if name in result and before[name].tobytes() != result[name].tobytes()]
    print(f"{len(before.files)} arrays: {len(missing)} missing, {len(changed)} changed, {len(result)} now")
    for name in [*missing, *changed][:20]:
        print(f"  {name}")
    sys.exit(bool(missing or changed))


if __name__ == "__main__":
    main()
