"""Time certificates and prediction sets.

    python -m benchmarks.certificates [--smallest] [--norm inf] [--data mnist] [--device cuda]
    OMP_NUM_THREADS=1 python -m benchmarks.certificates --models sets --threads 1
    OMP_NUM_THREADS=1 python -m benchmarks.certificates --models mlr cnn network --data mnist --threads 1

``mlr``: 100 clients x 525 images x 784 pixels in [0, 1], ten classes, multinomial logistic regression trained by WAFL,
five radii. The images are patterns with noise, or MNIST's. ``cnn``: the default CNN, trained by FedAvg on 500 of the
images, three radii. ``network``: a 6-32-2 ReLU network, trained by FedAvg on 1,600 rows, one radius. The table has
certified over reached loss at each radius, and the elapsed and processor seconds of all radii together. ``sets``:
prediction sets of a linear model, which 200 clients x 250 images calibrate, at rest and moved by 0.1. The reference is
a fixed loop of matrix products, whose seconds show the load of the machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import wafl
from benchmarks import options

FEATURES, CLASSES = 784, 10
SIDE = 28
RADII = (0.1, 0.5, 1.0, 2.0, 4.0)
FEW_RADII = (0.1, 0.3, 1.0)
Work = tuple[nn.Module | wafl.Run, wafl.Federation, Sequence[float]]
"""A model, its clients, and the radii to certify."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=[*MODELS, "sets"], default=["mlr"])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--examples", type=int, default=525, help="per client")
    parser.add_argument("--images", type=int, default=500, help="of the CNN")
    parser.add_argument("--rows", type=int, default=1600, help="of the network")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--radii", nargs="+", type=float, help="instead of each model's own")
    parser.add_argument("--norm", type=float, default=2.0)
    parser.add_argument("--data", choices=("patterns", "mnist"), default="patterns")
    parser.add_argument("--method", choices=("WAFL", "FedAvg"), default="WAFL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-attack", action="store_true", help="without the loss that is reached")
    parser.add_argument("--calibration", type=int, nargs=2, default=(200, 250), help="clients, and images of each")
    small = {"models": [*MODELS, "sets"], "images": 2, "rows": 40, "radii": [0.3], "calibration": (12, 5)}
    given = options.read(parser, argv, clients=2, examples=20, rounds=1, **small)
    torch.set_num_threads(given.threads)
    busy = reference(3 if given.smallest else 300)
    for name in given.models:
        if name == "sets":
            calibrate(given, busy)
        else:
            certify(name, given, busy)


def certify(name: str, given: argparse.Namespace, busy: float) -> None:
    """Train one model, time its certificates, and print them."""
    model, clients, radii = MODELS[name](given)
    radii = given.radii or radii
    started, spent = time.perf_counter(), time.process_time()
    certificates = wafl.certify(
        model, clients, radii=radii, norm=given.norm, achieved=not given.no_attack, device=given.device
    )
    passed, spent = time.perf_counter() - started, time.process_time() - spent
    table = Table("radius", "reached", "certified", "ratio", title=f"{name}, {len(clients.train.y)} examples")
    for row in certificates.rows:
        reached = ("", "") if row.achieved is None else (f"{row.achieved:.4f}", f"{row.best / row.achieved:.3f}")
        table.add_row(f"{row.radius:g}", reached[0], f"{row.best:.4f}", reached[1])
    Console().print(table)
    Console().print(
        f"{len(radii)} radii, {given.threads} threads: {passed:.1f} s, {spent:.1f} s of the processor; "
        f"reference: {busy:.2f} s"
    )


def calibrate(given: argparse.Namespace, busy: float) -> None:
    """Time prediction sets of a linear model, each promise at rest and after a shift."""
    count, examples = given.calibration
    clients = make_clients(count + 10, examples)
    seen, calibration = clients.set_apart(range(10))
    run = wafl.fit(wafl.models.mlr(seen), seen, wafl.FedAvg(), rounds=given.rounds, local_epochs=1, learning_rate=0.1)
    table = Table("promise", "radius", "threshold", "seconds of the processor", title=f"sets, {count} x {examples}")
    for about in ("client", "example"):
        for radius in (0.0, 0.1):
            spent = time.process_time()
            options: dict[str, Any] = {"about": about, "radius": radius, "coverage": 0.8, "training": seen}
            sets = wafl.prediction_sets(run, calibration, norm=given.norm, **options)
            spent = time.process_time() - spent
            table.add_row(about, f"{radius:g}", f"{sets.threshold:.4f}", f"{spent:.1f}")
    Console().print(table)
    Console().print(f"{given.threads} threads; reference: {busy:.2f} s")


def linear(given: argparse.Namespace) -> Work:
    clients = images(given, given.clients, given.examples)
    method = wafl.WAFL(gamma=0.5, bounds=None) if given.method == "WAFL" else wafl.FedAvg()
    run = wafl.fit(wafl.models.mlr(clients), clients, method, rounds=given.rounds, local_epochs=1, learning_rate=0.1)
    return run, clients, RADII


def convolutional(given: argparse.Namespace) -> Work:
    clients = images(given, 2, given.images // 2, (1, SIDE, SIDE))
    run = wafl.fit(
        wafl.models.cnn(clients), clients, wafl.FedAvg(), rounds=given.rounds, local_epochs=1, learning_rate=0.05
    )
    return run, clients, FEW_RADII


def network(given: argparse.Namespace) -> Work:
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(given.rows, 6, generator=generator), torch.randn(given.rows, generator=generator)
    y = (x.sum(1) + x[:, 0] * x[:, 1] + 0.5 * noise > 0).long()
    clients = wafl.Federation.from_arrays([(x[part::4], y[part::4]) for part in range(4)], test_fraction=0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    run = wafl.fit(model, clients, wafl.FedAvg(), rounds=given.rounds, local_epochs=1, learning_rate=0.1)
    return run, clients, (0.3,)


MODELS: dict[str, Callable[[argparse.Namespace], Work]] = {"mlr": linear, "cnn": convolutional, "network": network}


def images(
    given: argparse.Namespace, count: int, examples: int, shape: tuple[int, ...] = (FEATURES,)
) -> wafl.Federation:
    """Clients with patterns, or all of MNIST unless another number of images is asked for."""
    if given.data == "patterns":
        return make_clients(count, examples, shape)
    dataset = wafl.load_dataset("mnist")
    if shape == (FEATURES,) and (count, examples) == (100, 525):
        return dataset.partition(num_clients=100, labels_per_client=2, preprocess="unit")
    x, y = dataset.x_train[: count * examples], dataset.y_train[: count * examples]
    x = (torch.as_tensor(x).float() / 255.0).reshape(len(y), 1, SIDE, SIDE)
    parts = zip(x.split(examples), torch.as_tensor(y).long().split(examples), strict=True)
    return wafl.Federation.from_arrays(list(parts), test_fraction=0.0, bounds=(0.0, 1.0), num_classes=CLASSES)


def make_clients(count: int, examples: int, shape: tuple[int, ...] = (FEATURES,)) -> wafl.Federation:
    """Ten patterns and noise: classes that overlap."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(CLASSES, FEATURES, generator=generator)
    labels = torch.arange(count * examples) % CLASSES
    x = 0.1 * patterns[labels] + 0.9 * torch.rand(len(labels), FEATURES, generator=generator)
    parts = zip(x.view(-1, *shape).split(examples), labels.split(examples), strict=True)
    return wafl.Federation.from_arrays(list(parts), test_fraction=0.0, bounds=(0.0, 1.0), num_classes=CLASSES)


def reference(products: int) -> float:
    """Seconds of the processor for a fixed amount of work."""
    matrix = torch.rand(300, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    began = time.process_time()
    for _ in range(products):
        matrix = matrix @ matrix
        matrix = (matrix / matrix.norm()).exp().log()
    return time.process_time() - began


if __name__ == "__main__":
    main()
