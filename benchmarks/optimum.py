"""How close training by radius comes to the optimum, and how long it takes.

    .venv/bin/python benchmarks/optimum.py [--smallest]

Work: scikit-learn's breast cancer data, the 398 training examples of a 70/30 split, standardized; one client, logistic
regression, the l2 balls of W_1 and W_2. Printed are the optimum, the certified worst loss of the trained model, and the
processor seconds of the training. The optima of W_1 are those that dro 0.4.3 finds, and those of W_2 what
longer training tends to.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import options
import wafl

OPTIMA = {
    1: {0.05: 0.17886, 0.2: 0.34101, 0.5: 0.50721},
    2: {0.05: 0.07588, 0.2: 0.15141, 0.5: 0.26356},
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=20, help="per round")
    given = options.read(parser, argv, rounds=1, steps=1)
    clients = make_clients()
    table = Table("ball", "radius", "optimum", "trained", "above by", "seconds")
    for power, optima in OPTIMA.items():
        for radius, best in optima.items():
            method = wafl.WAFL(power=power, radius=radius, bounds=None)
            started = time.process_time()
            run = wafl.fit(
                wafl.models.mlr(clients), clients, method, rounds=given.rounds, local_steps=given.steps,
                batch_size=None, learning_rate=0.5, momentum=0.9,
            )  # fmt: skip
            seconds = time.process_time() - started
            found = wafl.certify(run.model, clients, radii=[radius], power=power, gap=1e-4)[0].value
            numbers = (f"{radius:g}", f"{best:.5f}", f"{found:.5f}", f"{found / best - 1.0:.3%}", f"{seconds:.1f}")
            table.add_row(f"W_{power}", *numbers)
    Console().print(table)


def make_clients() -> wafl.Federation:
    x, y = load_breast_cancer(return_X_y=True)
    split: Any = train_test_split(x, y, test_size=0.3, random_state=0)
    x, _, y, _ = split
    return wafl.Federation.from_arrays([((x - x.mean(0)) / x.std(0), y)], test_fraction=0.0)


if __name__ == "__main__":
    main()
