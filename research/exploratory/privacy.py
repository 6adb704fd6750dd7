"""Measure the cost of differential privacy: accuracy without it, with clipping, and at epsilon 8, 3 and 1.

    python -m research privacy [--smallest] [--clients 100 400] [--rounds 15] [--seeds 3]

FedAvg and WAFL on scikit-learn's digits, dealt out evenly, all clients in every round, equal weights, delta 1e-4. The
clipping norm was chosen among 0.25, 0.5 and 1 at epsilon 8 with another seed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import options
from wafl.config.read import parse_experiment
from wafl.studies.study import Study

SETTINGS: dict[str, dict[str, float] | None] = {
    "no privacy": None,
    "clipping only": {"noise_multiplier": 1e-9},
    "epsilon 8": {"epsilon": 8.0},
    "epsilon 3": {"epsilon": 3.0},
    "epsilon 1": {"epsilon": 1.0},
}


def accuracies(clients: int, rounds: int, seeds: int, clip_norm: float, setting: dict[str, float] | None) -> list[str]:
    """Return the accuracies of both methods as text."""
    content: dict[str, Any] = {
        "name": "privacy",
        "seeds": list(range(seeds)),
        "data": {"num_clients": clients, "iid": True, "split": "standard"},
        "schedule": {"rounds": rounds, "local_epochs": 1, "batch_size": 64, "learning_rate": 0.5},
        "methods": [
            {"method": "FedAvg", "client_weights": "uniform"},
            {"method": "WAFL", "client_weights": "uniform", "gamma": 5.0},
        ],
        "attack": {"kind": "none"},
    }
    if setting is not None:
        content["privacy"] = {"clip_norm": clip_norm, "delta": 1e-4, **setting}
    with tempfile.TemporaryDirectory() as folder:
        results = Study.create(parse_experiment(content, "benchmark"), Path(folder) / "study").run()
    values = [row["clean"] for row in results["methods"].values()]
    return [f"{each['mean']:.1f} ± {each['std']:.1f}" for each in values]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 400])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clip-norm", type=float, default=0.5)
    given = options.read(parser, argv, clients=[5], rounds=1, seeds=1)
    columns = [f"{method}, {clients} clients" for clients in given.clients for method in ("FedAvg", "WAFL")]
    print(f"| | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
    for name, setting in SETTINGS.items():
        cells = [
            cell
            for clients in given.clients
            for cell in accuracies(clients, given.rounds, given.seeds, given.clip_norm, setting)
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
