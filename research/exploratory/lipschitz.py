"""Measure the certificates of networks that are 1-Lipschitz by construction.

    python -m research lipschitz [--smallest] [--data mnist cifar10 digits]

Federated training, 20 clients with 3 labels each, all of them in every round, and on test examples: the clean accuracy,
the share that is correct under every move within an l2 distance, and the certified error in balls of W_2. With one
local step per round, ``momentum`` on the server follows the rates of the clients' steps: a rise, then a linear fall to
zero. ``adam`` divides them out, so its rate falls in stages, and each stage continues the training of the last. Without
CUDA everything runs on the CPU, without CUDA graphs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import wafl
from benchmarks import options
from wafl.theory.constants.assumptions import task_of
from wafl.theory.networks.margins import leads_of

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLIENTS, LABELS = 20, 3
RISE, STAGES = 0.1, (1.0, 0.3, 0.1, 0.03)
WITHIN = {"mnist": 0.3, "cifar10": 36 / 255, "digits": 0.3}
RADII = (0.3, 0.6)
SCALE = 2.0
"""The ratio of distances: images train in [-1, 1], and distances are printed for [0, 1]."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--data", nargs="+", choices=WITHIN, default=["mnist", "cifar10"])
    parser.add_argument("--data-dir", default="shared/data", help="the folder of mnist.npz and cifar10.npz")
    parser.add_argument("--images", type=int, help="how many training images are used; by default all")
    parser.add_argument("--width", type=int, default=64, help="channels of the first convolutions")
    parser.add_argument("--depth", type=int, default=3, help="convolutions at each size")
    parser.add_argument("--rounds", type=int, default=6000)
    parser.add_argument("--local-steps", type=int, default=1)
    parser.add_argument("--batch", type=int, default=25, help="examples per client and step")
    parser.add_argument("--server", choices=["momentum", "adam"], default="momentum")
    parser.add_argument("--rate", type=float, default=0.02, help="the highest; adam: 0.003 is usual")
    parser.add_argument("--offset", type=float, default=1.0, help="u of the loss")
    parser.add_argument("--temperature", type=float, default=0.25, help="t of the loss")
    parser.add_argument("--shift", type=int, default=0, help="pixels by which images are moved in a step")
    parser.add_argument("--flip", type=float, default=0.0, help="probability of a mirror image in a step")
    parser.add_argument("--seconds", type=float, default=600.0, help="training stops after this long")
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32", "bfloat16"])
    given = options.read(parser, argv, width=4, depth=1, rounds=2, data=["digits"], images=200)
    Console(width=120).print(bars(given))
    name = torch.cuda.get_device_name() if HERE.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    Console().print(f"torch {torch.__version__}, {name}")


def bars(given: argparse.Namespace) -> Table:
    """Return the table of certified errors."""
    held = [f"W_2 ball {radius}" for radius in RADII]
    table = Table("% of test examples", "clean", "held", *held, "seconds", "rounds", title="certified error in balls")
    for data in given.data:
        clients = load(data, given)
        model = wafl.models.lipschitz(clients, width=given.width, depth=given.depth)
        began = now()
        run, rounds = train(model, clients, given)
        took = now() - began
        distances = distances_of(run, clients)
        clean, safe = (100.0 * float((distances > SCALE * far).double().mean()) for far in (0.0, WITHIN[data]))
        radii = [SCALE * radius for radius in RADII]
        rows = wafl.certify(run, clients, radii=radii, metric="error", split="test", client_weights=BY_EXAMPLES)
        errors = [f"{100.0 * row.value:.1f}" for row in rows.rows]
        within = f"{safe:.1f} within {WITHIN[data]:.3g}"
        table.add_row(data, f"{clean:.1f}", within, *errors, f"{took:.0f}", str(rounds))
    return table


BY_EXAMPLES = wafl.weights.by_examples()


def load(name: str, given: argparse.Namespace) -> wafl.Federation:
    """Return the clients of a data set."""
    data = wafl.load_dataset(name, None if name == "digits" else given.data_dir)
    if given.images is not None:
        data = replace(data, x_train=data.x_train[: given.images], y_train=data.y_train[: given.images])
    return data.partition(CLIENTS, labels_per_client=LABELS, split="standard", preprocess="symmetric")


def train(model: nn.Module, clients: wafl.Federation, given: argparse.Namespace) -> tuple[wafl.Run, int]:
    """Return the trained run, and the number of rounds in the given time."""
    rounds, until = given.rounds, now() + given.seconds
    schedule: dict[str, Any] = {
        "local_steps": given.local_steps,
        "batch_size": given.batch,
        "precision": given.precision,
        "shift": given.shift,
        "flip": given.flip,
        "device": HERE.type,
        "loss": wafl.MarginLoss(SCALE * given.offset, SCALE * given.temperature),
        "callbacks": [lambda moment: moment.stop("the time is over") if now() > until else None],
    }

    def rate(number: int) -> float:
        rise = (number + 1) / (RISE * rounds)
        return given.rate * max(min(rise, (1.0 - number / rounds) / (1.0 - RISE)), 1e-3)

    if given.server == "momentum":
        run = wafl.fit(model, clients, wafl.FedAvgM(), rounds=rounds, learning_rate=rate, **schedule)
        return run, len(run.history)
    done, run = 0, None
    for stage, share in enumerate(STAGES):
        server = wafl.FedAdam(rate=share * given.rate, beta2=0.999, tau=1e-8)
        part = max(rounds // len(STAGES), 1)
        begins: dict[str, Any] = {} if run is None else {"init": run.params}
        run = wafl.fit(model, clients, server, rounds=part, learning_rate=1.0, seed=stage, **begins, **schedule)
        done += len(run.history)
    assert run is not None
    return run, done


def distances_of(run: wafl.Run, clients: wafl.Federation) -> Tensor:
    """Return the certain distance of each test example from an error, in l2."""
    task, params = task_of(run)
    distances: list[Tensor] = []
    for rows in torch.arange(len(clients.test.y)).split(500):
        x, y = clients.test.rows(rows, torch.float64), clients.test.y[rows]
        leads = leads_of(task, params, x[0].numel())
        assert leads is not None
        with torch.no_grad():
            outputs = task.outputs(params[None], x[None])[0]
        distances.append(leads.distance_to_error(x.flatten(1), outputs, y, 2))
    return torch.cat(distances)


def now() -> float:
    """Return the time, after the GPU has finished."""
    if HERE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
