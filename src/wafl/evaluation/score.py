"""Define the result of a test: pooled, per client, for the worst clients, with intervals; and result tables."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from wafl.base.conditions import CLEAN, SPLITS, attacked_clients, shorten, unseen_clients
from wafl.base.options import Range
from wafl.base.random import Key, Purpose, bits
from wafl.results.frames import to_frame, to_html, varying


def worst_count(share: float, num_clients: int) -> int:
    """Return the number of clients in the worst ``share``, at least 1.

    >>> worst_count(0.1, 7), worst_count(0.1, 30)
    (1, 3)
    """
    return max(1, math.ceil(share * num_clients - 1e-9))


@dataclass(frozen=True)
class ClientScore:
    """One client's test result.

    ``accuracy`` is None for regression, and ``weight`` is the share of all test examples.
    """

    name: str
    accuracy: float | None
    loss: float
    num_examples: int
    attacked: bool
    weight: float


@dataclass(frozen=True)
class Score:
    """The result of testing one model.

    ``accuracy`` and ``loss`` are over all test examples pooled; ``per_client`` is in the order of the clients. Clients
    without test examples are omitted. Tests with unseen clients add two scores: ``train``, on the same clients'
    training examples, and ``unseen``, on clients that took no part in training. ``attack`` and ``shift`` describe the
    changes of the examples, and ``label`` is the model's name in tables.
    """

    per_client: list[ClientScore]
    attack: str = "none"
    unit: str = "input units"
    seed: int = 0
    train: Score | None = None
    unseen: Score | None = None
    shift: str = ""
    label: str = "model"

    @property
    def conditions(self) -> str:
        """The changes of the examples, such as ``40% attacked: l_inf PGD, epsilon 0.1 (...)``, or ``clean``."""
        return "; ".join(filter(None, (self.shift, self._under_attack))) or CLEAN

    @property
    def name_of_unseen(self) -> str:
        """The name of the test on unseen clients in tables and figures, with its shift and attack."""
        if self.unseen is None:
            return ""
        return unseen_clients(shorten(self.unseen.shift), shorten(self.unseen._under_attack))

    @property
    def _under_attack(self) -> str:
        share = 0.0 if self.attack == "none" else fmean(client.attacked for client in self.per_client)
        return attacked_clients(share, self.attack) if share else ""

    @property
    def accuracy(self) -> float | None:
        """The pooled accuracy, or None for regression."""
        return self._pooled(self._accuracies) if self._accuracies is not None else None

    @property
    def loss(self) -> float:
        """The pooled loss."""
        return self._pooled(self._losses)

    @property
    def value(self) -> float:
        """The pooled accuracy (for regression, the loss)."""
        return self.loss if self.accuracy is None else self.accuracy

    @property
    def out_of_sample_gap(self) -> float | None:
        """The drop in accuracy (or rise in loss) from training to test examples, both of the clients that trained."""
        return None if self.train is None else self._behind(self.train)

    @property
    def participation_gap(self) -> float | None:
        """The drop in accuracy (or rise in loss) from training clients' test examples to unseen clients."""
        return None if self.unseen is None else self.unseen._behind(self)

    @property
    def client_accuracy(self) -> float | None:
        """The mean accuracy over clients with equal weights, or None for regression."""
        return float(self._accuracies.mean()) if self._accuracies is not None else None

    @property
    def client_loss(self) -> float:
        """The mean loss over clients with equal weights."""
        return float(self._losses.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the accuracy across clients (for regression, of the loss)."""
        return float(self._values.std(correction=0))

    @property
    def worst_client(self) -> ClientScore:
        """The client with the lowest accuracy (for regression, the highest loss)."""
        return min(self.per_client, key=lambda client: -client.loss if client.accuracy is None else client.accuracy)

    def worst(self, share: float) -> float:
        """Return the mean accuracy (for regression, loss) of the worst ``share`` of the clients, at least one."""
        Range(0.0, 1.0, low_open=True).check("share", share)
        worst_first = self._values.sort(descending=self._accuracies is None).values
        return float(worst_first[: worst_count(share, len(self.per_client))].mean())

    @property
    def worst_tenth(self) -> float:
        """The mean accuracy (for regression, loss) of the worst tenth of the clients, at least one client."""
        return self.worst(0.1)

    @cached_property
    def attacked(self) -> Score | None:
        """The score of only the attacked clients."""
        return self._part(lambda client: client.attacked)

    @cached_property
    def clean(self) -> Score | None:
        """The score of only the clients that were not attacked."""
        return self._part(lambda client: not client.attacked)

    def interval(self, level: float = 0.95, draws: int = 1000) -> tuple[float, float]:
        """Return a percentile bootstrap interval of the pooled accuracy (for regression, loss).

        The clients are drawn with replacement ``draws`` times, with a key from the score's seed, and the interval
        contains the fraction ``level`` of the values. It estimates how much the value would change with other clients
        from the same population. With fewer than about 10 clients it is too narrow.
        """
        Range(0.0, 1.0, low_open=True, high_open=True).check("level", level)
        values, count = self._values, len(self._values)
        chosen = bits(Key.of(self.seed), Purpose.BOOTSTRAP, draws * count).view(draws, count) % count
        weights = self._weights[chosen]
        pooled = (weights * values[chosen]).sum(1) / weights.sum(1)
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=pooled.dtype)
        low, high = torch.quantile(pooled, ends).tolist()
        return low, high

    def summary(self) -> dict[str, Any]:
        """Return all numbers of the score as plain values, with the attack and the unit of its size."""
        low, high = self.interval()
        parts = {name: part for name, part in (("attacked", self.attacked), ("clean", self.clean)) if part is not None}
        return {
            "attack": self.attack,
            "unit": self.unit,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "low": low,
            "high": high,
            "client_accuracy": self.client_accuracy,
            "client_loss": self.client_loss,
            "std": self.std,
            "worst_client": self.worst(1e-9),
            "worst_10": self.worst(0.1),
            "worst_20": self.worst(0.2),
            **{f"{name}_accuracy": part.accuracy for name, part in parts.items()},
            **{f"{name}_loss": part.loss for name, part in parts.items()},
            **self._generalization(),
        }

    def _generalization(self) -> dict[str, Any]:
        """Return the training score, the unseen score, and the gaps between them and the test score."""
        if self.train is None or self.unseen is None:
            return {}
        numbers: dict[str, Any] = {}
        for name, split in (("train", self.train), ("unseen", self.unseen)):
            low, high = split.interval()
            numbers |= {f"{name}_accuracy": split.accuracy, f"{name}_loss": split.loss}
            numbers |= {f"{name}_low": low, f"{name}_high": high, f"{name}_worst_10": split.worst_tenth}
        if self.unseen.shift:
            numbers["unseen_shift"] = self.unseen.shift
        return {**numbers, "out_of_sample_gap": self.out_of_sample_gap, "participation_gap": self.participation_gap}

    def to_pandas(self, *, all: bool = False) -> Any:
        """Return a ``pandas.DataFrame`` (``wafl-learn[pandas]``) of the clients: columns that differ, or ``all``."""
        rows = [asdict(client) for client in self.per_client]
        return to_frame(lambda: rows if all else varying(rows, keep=("name", "accuracy", "loss")))

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Plot every client's accuracy in percent (for regression, its loss), the worst first.

        Clients that took no part in training come last. If ``path`` is given, the figure is saved there.
        """
        from wafl.report.plotting import measure_by_client

        accuracy = self.accuracy is not None
        order = percent_or_loss if accuracy else lambda client: -client.loss  # pyright: ignore[reportUnknownLambdaType]
        worst_first = sorted(self.per_client, key=order)
        unseen = [] if self.unseen is None else sorted(self.unseen.per_client, key=order)
        groups = ["attacked" if client.attacked else "not attacked" for client in worst_first]
        return measure_by_client(
            [client.name for client in (*worst_first, *unseen)],
            [percent_or_loss(client) for client in (*worst_first, *unseen)],
            [*groups, *("unseen" for _ in unseen)],
            "accuracy (%)" if accuracy else "loss",
            percent_or_loss(self),
            shorten(self.conditions),
            {"unseen": self.name_of_unseen},
            None if path is None else Path(path),
        )

    def _repr_html_(self) -> str:
        return to_html(repr(self), [asdict(client) for client in self.per_client])

    def __rich__(self) -> Any:
        share = fmean(client.attacked for client in self.per_client)
        return score_tables({self.attack: {self.label: {share: [self]}}})

    def __str__(self) -> str:
        from wafl.evaluation.tables import as_text

        return as_text(self.__rich__())

    def __repr__(self) -> str:
        accuracy = "" if self.accuracy is None else f"accuracy={self.accuracy:.4f}, "
        unseen = "" if self.unseen is None else f", unseen={self.unseen.value:.4f}"
        train = "" if self.train is None else f", train={self.train.value:.4f}"
        clients = f"{len(self.per_client)} clients"
        return f"Score({accuracy}loss={self.loss:.4f}{train}{unseen}, {clients}, attack={self.attack!r})"

    @cached_property
    def _accuracies(self) -> Tensor | None:
        values = [client.accuracy for client in self.per_client if client.accuracy is not None]
        return torch.tensor(values, dtype=torch.float64) if values else None

    @cached_property
    def _losses(self) -> Tensor:
        return torch.tensor([client.loss for client in self.per_client], dtype=torch.float64)

    @property
    def _values(self) -> Tensor:
        """Each client's accuracy (for regression, its loss)."""
        return self._losses if self._accuracies is None else self._accuracies

    @cached_property
    def _weights(self) -> Tensor:
        return torch.tensor([client.weight for client in self.per_client], dtype=torch.float64)

    def _pooled(self, values: Tensor) -> float:
        return float(self._weights @ values / self._weights.sum())

    def _behind(self, other: Score) -> float:
        """Return the difference by which this score is worse than the other."""
        return self.value - other.value if self.accuracy is None else other.value - self.value

    def _part(self, wanted: Callable[[ClientScore], bool]) -> Score | None:
        chosen = [client for client in self.per_client if wanted(client)]
        return Score(chosen, self.attack, self.unit, self.seed, shift=self.shift) if chosen else None


def percent_or_loss(score: Score | ClientScore) -> float:
    """Return the accuracy in percent (for regression, the loss), as in tables and figures."""
    return score.loss if score.accuracy is None else 100.0 * score.accuracy


def averaged(scores: Sequence[Score]) -> Score:
    """Return each client's mean over several scores of the same clients, such as scores of several seeds."""
    first = scores[0]
    if len(scores) == 1:
        return first

    def mean(clients: tuple[ClientScore, ...]) -> ClientScore:
        accuracies = [client.accuracy for client in clients if client.accuracy is not None]
        return replace(
            clients[0],
            accuracy=fmean(accuracies) if accuracies else None,
            loss=fmean(client.loss for client in clients),
        )

    def of_split(name: str) -> Score | None:
        parts = [each for score in scores if (each := getattr(score, name)) is not None]
        return averaged(parts) if parts else None

    per_client = [mean(clients) for clients in zip(*(score.per_client for score in scores), strict=True)]
    return replace(first, per_client=per_client, train=of_split("train"), unseen=of_split("unseen"))


def generalization(scores: Sequence[Score]) -> dict[str, Any] | None:
    """Return a method's three numbers with intervals and worst tenths, and the two gaps; None without unseen clients.

    The three numbers follow Yuan et al. (ICLR 2022): on training, test and unseen data.

    Numbers are accuracies in percent, or losses, with their mean and standard deviation over the scores, one per seed.
    An interval is over clients: a bootstrap of each client's mean over the seeds.
    """
    scale = 1.0 if scores[0].accuracy is None else 100.0
    splits: dict[str, list[Score]] = {name: [] for name in SPLITS}
    for score in scores:
        if score.train is None or score.unseen is None:
            return None
        for name, split in zip(SPLITS, (score.train, score, score.unseen), strict=True):
            splits[name].append(split)

    def numbers(values: Sequence[float | None]) -> dict[str, Any]:
        return spread([scale * value for value in values if value is not None])

    return {
        **{
            name: {
                **numbers([split.value for split in each]),
                "interval": [scale * end for end in averaged(each).interval()],
                "worst_tenth": numbers([split.worst_tenth for split in each]),
            }
            for name, each in splits.items()
        },
        "out_of_sample_gap": numbers([score.out_of_sample_gap for score in scores]),
        "participation_gap": numbers([score.participation_gap for score in scores]),
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return the mean and standard deviation of values, one per seed, and the values themselves."""
    deviation = stdev(values) if len(values) > 1 else 0.0
    return {"mean": fmean(values), "std": deviation, "seeds": list(values)}


Shares = Mapping[float, Sequence[Score]]
"""The scores of several seeds of one model, by the share of attacked clients."""


def score_tables(tested: Mapping[str, Mapping[str, Shares]]) -> Any:
    """Return one table per attack, one row per run and share: accuracies in percent (losses for regression)."""
    from rich.console import Group

    every = [scores for runs in tested.values() for shares in runs.values() for scores in shares.values()]
    tables = [table for attack, runs in tested.items() for table in _tables_under(attack, runs)]
    seeds = max(map(len, every))
    what = "Losses" if every[0][0].accuracy is None else "Accuracies in percent"
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return Group(
        *tables,
        f"{what}, {over}. pooled: over all test examples; 95% interval: of pooled, by bootstrap over clients; clients: "
        "mean over clients ± standard deviation across clients; worst: the worst client; worst 10%: mean over the "
        "worst tenth of the clients; loss: over all test examples.",
    )


def _tables_under(attack: str, runs: Mapping[str, Shares]) -> list[Any]:
    """Return the table of the scores and, if clients were held out of training, the table of unseen clients."""
    from wafl.evaluation.tables import generalization_table

    three: dict[tuple[str, str], Mapping[str, Any]] = {}
    for run, shares in runs.items():
        for share, scores in shares.items():
            if (numbers := generalization(scores)) is not None:
                three[run, "" if attack == "none" else f"{share:.0%}"] = numbers
    first = next(scores[0] for shares in runs.values() for scores in shares.values())
    shift = "" if first.unseen is None else first.unseen.shift
    title = unseen_clients(shift, "" if attack == "none" else f"attacked: {attack}")
    unseen = [generalization_table(three, first.accuracy is not None, title)] if three else []
    return [_scores_under(attack, runs), *unseen]


def _scores_under(attack: str, runs: Mapping[str, Shares]) -> Any:
    """Return a table with one row per run and share of attacked clients: pooled, per client and at worst."""
    from wafl.evaluation.tables import Name, Shown, dense_table

    numbers = ("attacked", "pooled", "95%\ninterval", "clients", "worst", "worst\n10%", "loss")
    table = dense_table("run", numbers, title="clean data" if attack == "none" else attack)
    for run, shares in runs.items():
        for index, (share, scores) in enumerate(shares.items()):
            mean = averaged(scores)
            show = Shown(mean.accuracy is not None)
            table.add_row(
                Name(run) if index == 0 else "",
                f"{share:.0%}",
                show.spread([score.value for score in scores]),
                show.interval(mean.interval()),
                f"{show(mean.client_loss if mean.client_accuracy is None else mean.client_accuracy)}±{show(mean.std)}",
                show(fmean(score.worst(1e-9) for score in scores)),
                show(fmean(score.worst_tenth for score in scores)),
                f"{mean.loss:.3g}",
            )
    return table
