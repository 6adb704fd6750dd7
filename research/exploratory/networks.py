"""Measure how tight certificates of networks are: certified / simple / reached loss at each radius.

    python -m research networks [--smallest] [--norms 2 inf] [--networks "32 tanh" "32 ReLU"]

Work: digits, ten clients, networks trained by WAFL (gamma 0.5); certificates are about 300 of the training examples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch import nn

import wafl
from benchmarks import options

NETWORKS: dict[str, tuple[int, type[nn.Module]]] = {
    "32 tanh": (1, nn.Tanh),
    "32 ReLU": (1, nn.ReLU),
    "32 + 32 tanh": (2, nn.Tanh),
    "32 + 32 ReLU": (2, nn.ReLU),
}
UNITS, PIXELS, CLASSES = 32, 64, 10


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--norms", nargs="+", type=float, default=[2.0, math.inf])
    parser.add_argument("--radii", nargs="+", type=float, default=[0.1, 0.5, 1.0, 2.0, 4.0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--examples", type=int, default=300)
    given = options.read(parser, argv, networks=["32 ReLU"], norms=[2.0], radii=[0.5], rounds=1, examples=5)
    clients = wafl.load_dataset("digits").partition(num_clients=10, iid=True)
    few = torch.randperm(len(clients.train.y), generator=torch.Generator().manual_seed(0))[: given.examples]
    pair = clients.train.rows(few, torch.float32), clients.train.y[few]
    sample = wafl.Federation.from_arrays([pair], test_fraction=0.0, num_classes=CLASSES)
    print(f"| network, norm: certified / simple / reached | {' | '.join(f'{radius:g}' for radius in given.radii)} |")
    for name in given.networks:
        method = wafl.WAFL(gamma=0.5)
        run = wafl.fit(make(name), clients, method, rounds=given.rounds, local_epochs=2, learning_rate=0.3)
        for norm in given.norms:
            started = time.process_time()
            certificates = wafl.certify(run.model, sample, radii=given.radii, norm=norm)
            cells = [f"{row.best:.2f} / {row.simple:.2f} / {row.achieved:.2f}" for row in certificates.rows]
            seconds = time.process_time() - started
            print(f"| {name}, l_{norm:g} | {' | '.join(cells)} |  {seconds:.0f} processor seconds", flush=True)


def make(name: str) -> nn.Module:
    """Return a network of one or two hidden layers."""
    depth, activation = NETWORKS[name]
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Flatten()]
    for layer in range(depth):
        layers += [nn.Linear(UNITS if layer else PIXELS, UNITS), activation()]
    return nn.Sequential(*layers, nn.Linear(UNITS, CLASSES))


if __name__ == "__main__":
    main()
