"""Measure how tight certificates of linear models are: certified over reached loss at each radius.

    python -m research certificates [--data digits mnist] [--smallest]

Models of real data, trained by FedAvg and WAFL; certificates are about 300 of their training examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console

import wafl
from benchmarks import options

CLASSES = 10
RADII = (0.1, 0.5, 1.0, 2.0, 4.0)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--data", nargs="+", choices=("digits", "mnist"), default=["digits", "mnist"])
    given = options.read(parser, argv, data=["digits"])
    for name in given.data:
        show_ratios(name, given.smallest)


def show_ratios(name: str, smallest: bool) -> None:
    """Print one line per method and norm."""
    whole = wafl.load_dataset(name)
    if name == "digits":
        clients = whole.partition(num_clients=10, iid=True)
        schedule: dict[str, Any] = {"rounds": 60, "local_epochs": 2, "learning_rate": 0.5}
    else:
        clients = whole.partition(num_clients=100, labels_per_client=2, preprocess="zscore_pooled")
        schedule = {"rounds": 40, "local_epochs": 2, "learning_rate": 0.05, "cohort": 10}
    radii = RADII[:1] if smallest else RADII
    if smallest:
        schedule["rounds"] = 1
    few = torch.randperm(len(clients.train.y), generator=torch.Generator().manual_seed(0))[: 20 if smallest else 300]
    pair = clients.train.rows(few, torch.float32), clients.train.y[few]
    sample = wafl.Federation.from_arrays([pair], test_fraction=0.0, num_classes=CLASSES)
    for method in (wafl.FedAvg(), wafl.WAFL(gamma=0.5)):
        run = wafl.fit(wafl.models.mlr(clients), clients, method, **schedule)
        for norm in (2.0, float("inf")):
            certificates = wafl.certify(run.model, sample, radii=radii, norm=norm)
            ratios = [f"{row.best / row.achieved:.3f}" for row in certificates.rows if row.achieved]
            Console().print(f"{name}, {method.name}, l_{norm:g}, radii {radii}: {', '.join(ratios)}")


if __name__ == "__main__":
    main()
