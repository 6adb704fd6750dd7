"""Measure the accuracy of pooled logistic regression on people and places that it has and has not seen.

    python -m research natural [--data-dir FOLDER] [--smallest]

Seen: examples are held out at random, so that every client has some in training. Unseen: whole clients are held out.
Both are the accuracy over 5 folds (3 where there are 3 clients), averaged over shuffles; features are standardized on
the training examples. --data-dir is the folder with mlbench's Vowel.rda; what is not installed is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import options
from wafl.data.named.cache import data_folder
from wafl.data.named.natural import NATURAL, NaturalSource


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--shuffles", type=int, default=3)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--only", nargs="*", default=[name for name, source in NATURAL.items() if source.classes])
    given = options.read(parser, argv, shuffles=1, only=["peterson-kinds"])
    console, folder = Console(), data_folder(given.data_dir)
    table = Table("data", "clients", "examples", "seen", "unseen")
    for name in given.only:
        source = NATURAL[name]
        if source.find(folder) is None:
            console.print(f"{name} is not here: `wafl data list` says what it needs")
            continue
        seen, unseen = gap(source, folder, given.shuffles)
        who = f"{source.num_clients} {source.clients}"
        table.add_row(name, who, f"{source.num_examples:,}", f"{seen:.1f}", f"{unseen:.1f}")
    console.print(table)


def gap(source: NaturalSource, folder: Path, shuffles: int) -> tuple[float, float]:
    """Return the accuracy in percent on held-out examples of seen clients, and on unseen clients."""
    table = source.load(folder)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    folds = min(5, source.num_clients)

    def accuracy(split: Any, groups: Sequence[str] | None = None) -> float:
        scores = cast(Any, cross_val_score)(model, table.x, table.y, groups=groups, cv=split)
        return 100 * float(scores.mean())

    seen = [accuracy(StratifiedKFold(folds, shuffle=True, random_state=seed)) for seed in range(shuffles)]
    unseen = [accuracy(GroupKFold(folds, shuffle=True, random_state=seed), table.who) for seed in range(shuffles)]
    return statistics.fmean(seen), statistics.fmean(unseen)


if __name__ == "__main__":
    main()
