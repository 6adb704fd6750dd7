"""Search for the worst attack on each defense, by nodes that know everything.

    python -m research malicious [--methods FedAvg] [--defenses default] [--splits iid] [--malicious 1 2] [--seeds 0 1]
        [--work FOLDER] [--processes N] [--output FILE] [--smallest]

Digits, ten clients with like data ("iid") or three labels each ("labels"), multinomial logistic regression, twenty
rounds of two local epochs (AFL: a hundred of one step). Malicious nodes agree on one reply. They know the models of all
honest clients of the round, the weights and the rules, and send ``center + scale * length * direction``
(``malicious_attacks.py``), with claims of a loss, a cost and a number of examples.

There is one search for each method, defense and number of malicious nodes, on the first seed. It tries every direction
from two centers at two scales. Then it changes the scale and the claims of two attacks: the one that costs most
accuracy, and the one that costs most recall of a class. The worst of each kind run on all seeds, and a table shows the
worse mean. "lost" is measured against the honest run without the malicious nodes, on the same seed. ± is the standard
error of the mean over the seeds.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from math import inf, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import wafl
from benchmarks import options
from research import jobs
from research.experiment import ROOT
from research.exploratory.liars import CLIENTS, METHODS, SPLITS, federation
from research.exploratory.malicious_attacks import AIMS, CENTERS, Attack, Attacked
from research.markdown import table
from wafl import servers
from wafl.base.errors import TrainingWarning
from wafl.parts.schedule import Schedule
from wafl.results.run import Run
from wafl.train.loop import Trainer
from wafl.train.spec import Spec

CLASSES = 10
NUMBERS = ROOT / "docs" / "evidence" / "malicious.json"
LEARNED = ("AFL", "DRFA")
FINALISTS = 1
"""The number of attacks of either kind that run on all seeds."""


@dataclass(frozen=True)
class Defense:
    """The measures of a server; with ``uniform``, a method without learned client weights has equal ones."""

    server: servers.Aggregating = field(default_factory=servers.averaging)
    tolerance: wafl.Tolerance = field(default_factory=wafl.Tolerance)
    caps: wafl.Caps = field(default_factory=wafl.Caps)
    uniform: bool = False

    def of(self, method: wafl.Method) -> wafl.Method:
        """Return the method with this server and these weights."""
        equal = self.uniform and not method.client_weights.learns
        weights = wafl.weights.uniform() if equal else method.client_weights
        return replace(method, server=self.server, client_weights=weights)


DEFENSES = {
    "none": Defense(tolerance=wafl.Tolerance(clip=inf), caps=wafl.Caps(client_share=1.0)),
    "default": Defense(),
    "median": Defense(servers.median(), wafl.Tolerance(clip_loss=1.25), wafl.Caps(client_share=0.12), uniform=True),
    "clipped": Defense(
        servers.clipped(1.0), wafl.Tolerance(clip_loss=1.25), wafl.Caps(client_share=0.12), uniform=True
    ),
}


@dataclass(frozen=True)
class Setting:
    """A method, a defense, a division of the data, and a number of malicious nodes; one search each."""

    method: str
    defense: str
    split: str
    malicious: int
    rounds: int = 20

    def spec(self, seed: int) -> Spec:
        """Return the run of a seed."""
        one_step = self.method == "AFL"
        work: dict[str, Any] = {"local_steps": 1} if one_step else {"local_epochs": 2}
        rounds = 5 * self.rounds if one_step else self.rounds
        schedule = Schedule(rounds=rounds, batch_size=32, learning_rate=0.1, seed=seed, **work)
        return Spec(DEFENSES[self.defense].of(METHODS[self.method]), schedule)

    def first(self, scales: Sequence[float] = (1.0, 3.0)) -> list[Attack]:
        """Return the first attacks of a search."""
        claims: dict[str, Any] = {"loss": 50.0} if self.method in LEARNED else {"count": 3}
        return [Attack(*each, **claims) for each in product(AIMS, CENTERS, scales)]

    def changed(self, attack: Attack) -> list[Attack]:
        """Return the attack with other scales or other claims."""
        others: list[Mapping[str, Any]] = [{"scale": scale} for scale in (0.5, 2.0, 5.0, 20.0)]
        others += [{"count": count} for count in (1, 3) if self.method != "AFL"]
        others += [{"cost": cost} for cost in (0.0, 1000.0) if self.method == "WAFL"]
        return [each for other in others if (each := replace(attack, **other)) != attack]


@dataclass(frozen=True)
class Measured:
    """Accuracy, the accuracy of the worst client, and the recall of each class, in percent."""

    accuracy: float
    worst_client: float
    recall: tuple[float, ...]

    @classmethod
    def of(cls, run: Run, clients: wafl.Federation) -> Measured:
        """Measure a run on the test examples of all clients; a run that diverged has 0."""
        if run.history.diverged:
            return cls(0.0, 0.0, (0.0,) * CLASSES)
        with torch.no_grad():
            right = 100.0 * (run.model(clients.test.x).argmax(1) == clients.test.y).double()
        by_client = right.split(clients.test.num_examples.tolist())
        recall = tuple(float(right[clients.test.y == label].mean()) for label in range(CLASSES))
        return cls(float(right.mean()), min(float(part.mean()) for part in by_client if len(part)), recall)


def measure(setting: Setting, attacks: Sequence[Attack | None], seed: int) -> list[Measured]:
    """Measure attacks on one seed; None is the honest run of the others. Attacks of equal sizes train together."""
    clients, defense = federation(setting.split, seed), DEFENSES[setting.defense]
    malicious = tuple((seed + 3 * index) % CLIENTS for index in range(setting.malicious))
    results = dict[Attack | None, Measured]()
    for count in dict.fromkeys(attack and attack.count for attack in attacks):
        together = [attack for attack in attacks if (attack and attack.count) == count]
        honest = clients.set_apart(malicious)[0] if malicious and count is None else clients
        source = Attacked(
            honest,
            torch.device("cpu"),
            tolerance=defense.tolerance.settled(remote=True),
            caps=defense.caps.settled(remote=True),
            malicious=() if count is None else malicious,
            attacks=tuple(together),
            count=count,
        )
        trainer = Trainer(wafl.models.mlr(clients), source, "cross_entropy", None)
        runs = trainer.train([setting.spec(seed)] * len(together))
        results |= {attack: Measured.of(run, clients) for attack, run in zip(together, runs, strict=True)}
    return [results[attack] for attack in attacks]


def lost_accuracy(honest: Measured, attacked: Measured) -> float:
    """Return the loss of accuracy, in points."""
    return honest.accuracy - attacked.accuracy


def lost_recall(honest: Measured, attacked: Measured) -> float:
    """Return the largest loss of recall of a class, in points."""
    return max(before - after for before, after in zip(honest.recall, attacked.recall, strict=True))


def finalists(setting: Setting, seed: int, *, smallest: bool) -> list[Attack]:
    """Return the attacks that cost most accuracy on this seed, and the attacks that cost most recall of a class."""
    first = setting.first()[:1] if smallest else setting.first()
    honest, *measured = measure(setting, [None, *first], seed)
    seen = dict(zip(first, measured, strict=True))
    worst = partial(_worst, honest, seen)
    further = [each for attack in dict.fromkeys(worst(1)) for each in setting.changed(attack) if each not in seen]
    if further and not smallest:
        seen |= dict(zip(further, measure(setting, further, seed), strict=True))
    return list(dict.fromkeys(worst(FINALISTS)))


def _worst(honest: Measured, seen: Mapping[Attack, Measured], count: int) -> list[Attack]:
    losses = lost_accuracy, lost_recall
    ordered = [sorted(seen, key=lambda attack: -loss(honest, seen[attack])) for loss in losses]
    return [attack for each in ordered for attack in each[:count]]


def work(setting: Setting, seeds: Sequence[int], *, smallest: bool) -> list[dict[str, Any]]:
    """Search for the worst attacks on a setting, and measure them and the honest run on all seeds."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", TrainingWarning)
    attacks = [None, *finalists(setting, seeds[0], smallest=smallest)] if setting.malicious else [None]
    return [
        {**asdict(setting), "seed": seed, "attack": attack and asdict(attack), **asdict(measured)}
        for seed in seeds
        for attack, measured in zip(attacks, measure(setting, attacks, seed), strict=True)
    ]


Row = Mapping[str, Any]


def shown(values: Sequence[float]) -> str:
    """Format the mean, and its standard error if there are several values."""
    error = f" ± {stdev(values) / sqrt(len(values)):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{error}"


@dataclass(frozen=True)
class Results:
    """The rows of one setting by attack, in the order of the seeds; rows without an attack are the honest run."""

    honest: list[Measured]
    attacked: dict[Attack, list[Measured]]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Results:
        """Return the results in these rows."""
        by_attack: dict[Attack | None, list[Measured]] = {}
        for row in rows:
            attack = row["attack"] and Attack(**row["attack"])
            measured = Measured(row["accuracy"], row["worst_client"], tuple(row["recall"]))
            by_attack.setdefault(attack, []).append(measured)
        honest = by_attack.pop(None)
        return cls(honest, {attack: each for attack, each in by_attack.items() if attack is not None})

    def lost(self, attack: Attack, number: Callable[[Measured], float]) -> list[float]:
        """Return the loss of a number under an attack, by seed."""
        return [
            number(before) - number(after) for before, after in zip(self.honest, self.attacked[attack], strict=True)
        ]

    def cells(self) -> list[str]:
        """Return the honest accuracy, the worst attack's cost, and another attack's cost in recall of a class."""
        worst = max(self.attacked, key=lambda attack: fmean(self.lost(attack, _accuracy)))
        label, other = max(
            product(range(CLASSES), self.attacked), key=lambda pair: fmean(self.lost(pair[1], _recall(pair[0])))
        )
        return [
            shown([each.accuracy for each in self.honest]),
            f"{shown(self.lost(worst, _accuracy))} ({worst})",
            f"{shown(self.lost(other, _recall(label)))} of {label} ({other})",
        ]


def _accuracy(measured: Measured) -> float:
    return measured.accuracy


def _recall(label: int) -> Callable[[Measured], float]:
    return lambda measured: measured.recall[label]


def report(rows: Sequence[Row]) -> dict[str, str]:
    """Return the tables by name: the costs of attacks, and the cost of the defense without malicious nodes."""
    by_setting: dict[Setting, list[Row]] = {}
    for row in rows:
        by_setting.setdefault(
            Setting(*(row[name] for name in ("method", "defense", "split", "malicious", "rounds"))), []
        ).append(row)
    attacked = [
        [each.split, each.method, str(each.malicious), each.defense, *Results.of(mine).cells()]
        for each, mine in by_setting.items()
        if each.malicious
    ]
    head = ["data", "method", "malicious", "defense", "without them", "lost accuracy", "lost recall"]
    tables = {"malicious": table(head, attacked)}
    unharmed = {each: Results.of(mine).honest for each, mine in by_setting.items() if not each.malicious}
    costs: list[list[str]] = []
    for each, measured in unharmed.items():
        before = unharmed.get(replace(each, defense="none"))
        if before is not None and each.defense != "none":
            pairs = list(zip(before, measured, strict=True))
            mean = shown([lost_accuracy(*pair) for pair in pairs])
            worst = shown([one.worst_client - other.worst_client for one, other in pairs])
            costs.append([each.split, each.method, each.defense, shown([one.accuracy for one in before]), mean, worst])
    head = ["data", "method", "defense", "accuracy under none", "lost accuracy", "lost by the worst client"]
    return tables | ({"malicious-cost": table(head, costs)} if costs else {})


def page() -> dict[str, str]:
    """Return the tables of the page, from the committed numbers."""
    return report(json.loads(NUMBERS.read_bytes())["rows"])


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    jobs.add_options(parser, "malicious")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--defenses", nargs="+", choices=list(DEFENSES), default=list(DEFENSES))
    parser.add_argument("--splits", nargs="+", choices=list(SPLITS), default=["iid", "labels"])
    parser.add_argument("--malicious", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path, help="write the numbers to this file")
    small = {
        "methods": ["FedAvg"],
        "defenses": ["median"],
        "splits": ["iid"],
        "malicious": [1],
        "seeds": [0],
        "rounds": 1,
    }
    given = options.read(parser, argv, **small)
    settings = [
        Setting(method, defense, split, malicious, given.rounds)
        for split, method, malicious, defense in product(given.splits, given.methods, given.malicious, given.defenses)
    ]
    named = {"-".join(map(str, asdict(each).values())) + f"-{len(given.seeds)}": each for each in settings}
    results = jobs.kept(given, {"name": "malicious"}).run(
        partial(work, seeds=given.seeds, smallest=given.smallest), named
    )
    rows = [row for part in results.values() for row in part]
    if given.output is not None:
        lines = ",\n".join(json.dumps(row) for row in rows)
        given.output.write_text(f'{{"rows": [\n{lines}\n]}}\n')
    for text in report(rows).values():
        print(text, end="\n\n")


if __name__ == "__main__":
    main()
