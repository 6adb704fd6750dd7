"""How long certificates of a linear model take.

    python -m benchmarks.certificates [--smallest] [--norm inf] [--data mnist] [--device cuda]

Work: 100 clients x 525 images x 784 pixels in [0, 1], ten classes, multinomial logistic regression trained by WAFL,
five radii. The images are patterns with noise, or MNIST's. Printed are certified over reached loss at each radius, and
the seconds of all five together: those that passed, and those of the processor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table

import wafl
from benchmarks import options

FEATURES, CLASSES = 784, 10
RADII = (0.1, 0.5, 1.0, 2.0, 4.0)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--examples", type=int, default=525, help="per client")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--norm", type=float, default=2.0)
    parser.add_argument("--data", choices=("patterns", "mnist"), default="patterns")
    parser.add_argument("--method", choices=("WAFL", "FedAvg"), default="WAFL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-attack", action="store_true", help="without the loss that is reached")
    given = options.read(parser, argv, clients=2, examples=20, rounds=1)
    torch.set_num_threads(given.threads)
    if given.data == "mnist":
        clients = wafl.load_dataset("mnist").partition(num_clients=100, labels_per_client=2, preprocess="unit")
    else:
        clients = make_clients(given.clients, given.examples)
    method = wafl.WAFL(gamma=0.5, bounds=None) if given.method == "WAFL" else wafl.FedAvg()
    run = wafl.fit(wafl.models.mlr(clients), clients, method, rounds=given.rounds, local_epochs=1, learning_rate=0.1)
    started, spent = time.perf_counter(), time.process_time()
    certificates = wafl.certify(
        run, clients, radii=RADII, norm=given.norm, achieved=not given.no_attack, device=given.device
    )
    passed, spent = time.perf_counter() - started, time.process_time() - spent
    table = Table("radius", "reached", "certified", "ratio", title=f"{len(clients.train.y)} images")
    for row in certificates.rows:
        reached = ("", "") if row.achieved is None else (f"{row.achieved:.4f}", f"{row.best / row.achieved:.3f}")
        table.add_row(f"{row.radius:g}", reached[0], f"{row.best:.4f}", reached[1])
    Console().print(table)
    Console().print(f"{len(RADII)} radii, {given.threads} threads: {passed:.1f} s, {spent:.1f} s of the processor")


def make_clients(count: int, examples: int) -> wafl.Federation:
    """Ten patterns and noise: classes that overlap."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(CLASSES, FEATURES, generator=generator)
    labels = torch.arange(count * examples) % CLASSES
    x = 0.1 * patterns[labels] + 0.9 * torch.rand(len(labels), FEATURES, generator=generator)
    parts = zip(x.split(examples), labels.split(examples), strict=True)
    return wafl.Federation.from_arrays(list(parts), test_fraction=0.0, bounds=(0.0, 1.0))


if __name__ == "__main__":
    main()
