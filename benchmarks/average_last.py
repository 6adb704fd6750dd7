"""What the mean of the last half of the rounds' models gains over the last one, on digits with sampled cohorts.

    .venv/bin/python benchmarks/average_last.py [--smallest] [--rounds 200] [--seeds 4]

Work: 20 clients with 3 labels each, 5 of them per round, 5 local steps, a linear model. Printed are the accuracy under
l_inf PGD of epsilon 0.1 and the certified loss at an l2 radius of 0.3, as means and deviations over seeds, of the last
model and of the mean.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from rich.console import Console
from rich.table import Table

import options
import wafl
from wafl.results.run import with_params

METHODS = [wafl.FedAvg(), wafl.WAFL(radius=0.3), wafl.FedPGM(epsilon=0.1), wafl.DRFA()]


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=0.3)
    given = options.read(parser, argv, rounds=2, seeds=1)
    warnings.simplefilter("ignore")
    table = Table("method", "attacked %, last", "averaged", "certified loss, last", "averaged")
    for method in METHODS:
        found: dict[str, list[float]] = {}
        for seed in range(given.seeds):
            clients = wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=seed)
            run = wafl.fit(
                wafl.models.mlr(clients), clients, method, rounds=given.rounds, cohort=5, local_steps=5, seed=seed,
                learning_rate=given.learning_rate, average_last=0.5, check_optimum=False,
            )  # fmt: skip
            last = replace(run, params=run.last_params, module=with_params(run.module, run.last_params), last=None)
            for name, each in (("last", last), ("averaged", run)):
                score = wafl.evaluate(each, clients, attack=wafl.PGD(epsilon=0.1))
                found.setdefault(f"attacked {name}", []).append(100 * (score.accuracy or 0.0))
                found.setdefault(f"certified {name}", []).append(wafl.certify(each, clients, radii=[0.3])[0].value)
        columns = ("attacked last", "attacked averaged", "certified last", "certified averaged")
        table.add_row(method.name, *(shown(found[name], 1 if "attacked" in name else 3) for name in columns))
    Console().print(table)


def shown(values: Sequence[float], digits: int) -> str:
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


if __name__ == "__main__":
    main()
