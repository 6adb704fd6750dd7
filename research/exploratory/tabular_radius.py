"""Compare ``WassersteinRegressor(radius="auto")`` with cross-validated decay, the lasso and a constant.

    python -m research tabular-radius [--seeds 10] [--smallest]

The regressions that ship with scikit-learn, as they are and with permuted copies of their columns: nine copies of the
ten columns of diabetes, three of the three of linnerud, whose targets are three tasks. Half of the examples train, and
columns have a standard deviation of 1 there. Errors are mean squared errors on the other half, relative to the error of
a constant: the mean over seeds of the split and the permutations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_diabetes, load_linnerud
from sklearn.linear_model import LassoCV, RidgeCV
from sklearn.preprocessing import StandardScaler

from benchmarks import options
from wafl.sklearn import WassersteinRegressor

COPIES = {"diabetes": 9, "linnerud": 3}
METHODS: dict[str, Callable[[], Any]] = {
    "auto, l2": WassersteinRegressor,
    "auto, l_inf": lambda: WassersteinRegressor(norm=float("inf")),
    "ridge": lambda: RidgeCV(np.logspace(-3, 5, 33)),
    "lasso": lambda: LassoCV(cv=5, random_state=0),
}


def tasks() -> dict[str, tuple[Any, Any]]:
    """Return examples and targets, by name."""
    load: Any = load_linnerud
    x, targets = load(return_X_y=True)
    names = ("weight", "waist", "pulse")
    some: dict[str, Any] = {"diabetes": load_diabetes(return_X_y=True)}
    return some | {f"linnerud, {name}": (x, targets[:, index]) for index, name in enumerate(names)}


def one_seed(x: Any, y: Any, copies: int, seed: int) -> list[float]:
    """Return the error of each method, over the error of a constant."""
    random = np.random.default_rng(seed)
    x = np.hstack([x, *(random.permuted(x, axis=0) for _ in range(copies))])
    order = random.permutation(len(y))
    train, test = np.split(order, [max(len(y) // 2, min(20, len(y) - 5))])
    scaler = StandardScaler().fit(x[train])
    seen, unseen = scaler.transform(x[train]), scaler.transform(x[test])
    constant = np.mean((y[test] - y[train].mean()) ** 2)
    models = [make().fit(seen, y[train]) for make in METHODS.values()]
    return [float(np.mean((model.predict(unseen) - y[test]) ** 2) / constant) for model in models]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=list(tasks()), default=list(tasks()))
    given = options.read(parser, argv, seeds=1, only=["linnerud, waist"])
    table = Table("data", "columns", *METHODS)
    for name in given.only:
        x, y = tasks()[name]
        for copies in (0, COPIES[name.partition(",")[0]]):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                errors = np.array([one_seed(x, y, copies, seed) for seed in range(given.seeds)])
            means = errors.mean(0)
            table.add_row(name, f"{x.shape[1] * (copies + 1)}", *(f"{each:.3f}" for each in means))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
