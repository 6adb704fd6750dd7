"""Compare published bounds with searched bounds, for each kind of certificate.

    python -m research published [--smallest]

The checker of files proves more simply than ``wafl.certify`` and ``wafl.next_client`` search. Digits, 4 clients, models
after some rounds of FedAvg, and of WAFL, whose weights are small; test examples, or 30 held-out clients of 60. The
table has the largest ratio over the radii 0.1, 0.5 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

import wafl
from benchmarks import options

RADII = (0.1, 0.5, 1.0)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--examples", type=int, default=300, help="whose certificates are compared")
    parser.add_argument("--clients", type=int, default=60, help="of which half are held out")
    given = options.read(parser, argv, rounds=1, examples=12, clients=40)
    print("| kind | published over searched |")
    for kind, ratio in chain(certificates(given.rounds, given.examples), statements(given.rounds, given.clients)):
        print(f"| {kind} | {ratio:.4f} |", flush=True)


def certificates(rounds: int, count: int) -> Iterator[tuple[str, float]]:
    """Yield kinds of certificates of one model, and their ratios."""
    digits = wafl.load_dataset("digits").partition(num_clients=4, iid=True, preprocess="unit")
    linear, small = wafl.models.mlr(digits), wafl.models.mlr(digits)
    torch.manual_seed(0)
    relu, tanh = (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 32), kind(), nn.Linear(32, 10)) for kind in (nn.ReLU, nn.Tanh)
    )
    tight = wafl.models.lipschitz(digits)
    margin = wafl.MarginLoss(1.0, 0.25)
    steps: dict[str, Any] = {"rounds": rounds, "local_epochs": 1, "learning_rate": 0.5, "progress": False}
    models: dict[str, Any] = {
        "linear": wafl.fit(linear, digits, wafl.FedAvg(), **steps),
        "linear, small weights": wafl.fit(small, digits, wafl.WAFL(gamma=0.5), **steps),
    }
    nets: dict[str, Any] = {"ReLU, 32 units": relu, "tanh, 32 units": tanh}
    nets = {name: wafl.fit(net, digits, wafl.FedAvg(), **steps) for name, net in nets.items()}
    nets["1-Lipschitz"] = wafl.fit(tight, digits, wafl.FedAvg(), loss=margin, **steps)
    rows = torch.arange(0, len(digits.train.y), max(len(digits.train.y) // count, 1))
    half = digits.train.rows(rows[::2], torch.float64), digits.train.y[rows[::2]]
    other = digits.train.rows(rows[1::2], torch.float64), digits.train.y[rows[1::2]]
    sample = wafl.Federation.from_arrays([(*half, *other)], bounds=digits.bounds, num_classes=10)
    for name, run in models.items():
        for norm in (2, 1, math.inf):
            yield f"{name}, loss, {'l_inf' if norm == math.inf else f'l{norm}'}", ratio(run.model, sample, norm=norm)
        yield f"{name}, loss, power 1", ratio(run.model, sample, power=1)
        yield f"{name}, error", ratio(run.model, sample, metric="error")
        sure: dict[str, Any] = {"split": "test", "confidence": 0.95}
        yield f"{name}, loss, l2, confidence", ratio(run.model, sample, **sure)
        yield f"{name}, error, confidence", ratio(run.model, sample, metric="error", **sure)
    for name, run in nets.items():
        loss = margin if name == "1-Lipschitz" else None
        yield f"{name}, loss, l2", ratio(run.model, sample, loss=loss)
        yield f"{name}, error", ratio(run.model, sample, metric="error", loss=loss)
    rng = np.random.default_rng(0)
    pairs = [(x := rng.normal(size=(count, 4)), x @ np.ones(4) + rng.normal(size=count))]
    regression = wafl.Federation.from_arrays(pairs, test_fraction=0.0)
    yield "linear regression, l2", ratio(nn.Linear(4, 1).double(), regression, loss="squared_error")


def ratio(model: nn.Module, clients: wafl.Federation, **asked: Any) -> float:
    """Return the largest published value over the searched one."""
    certificates = wafl.certify(model, clients, radii=RADII, achieved=False, progress=False, **asked)
    published = certificates.published.values
    return max(published[row.radius] / row.best for row in certificates.rows)


def statements(rounds: int, count: int) -> Iterator[tuple[str, float]]:
    """Yield the statements about the next client, and their ratios at radius 0.1."""
    seen, unseen = wafl.load_dataset("digits").partition(num_clients=count, iid=True, preprocess="unit").hold_out(0.5)
    run = wafl.fit(wafl.models.mlr(seen), seen, wafl.FedAvg(), rounds=rounds, local_epochs=1, progress=False)
    for metric in ("loss", "error"):
        asked: dict[str, Any] = {"radius": 0.1, "metric": metric, "confidence": 0.8}
        result = wafl.next_client(run, seen, unseen, **asked)
        published = result.publish(share=0.5).values
        searched = {"mean": result.mean, "share 0.5": lambda result=result: result.share(0.5), "next": result.next}
        for name, value in published.items():
            yield f"{metric}, next client, {name}", value / searched[name]()


if __name__ == "__main__":
    main()
