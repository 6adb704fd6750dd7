"""One client of ten lies: what it costs the model, by attack and by defense.

    .venv/bin/python benchmarks/liars.py [--smallest] [--split iid] [--cost] [--seeds 0 1 2] [--rounds 20]

Digits, ten clients with five labels each or with like data ("iid"), multinomial logistic regression, two local epochs
per round; accuracy on the test examples of all clients in percent, mean and standard deviation over the seeds, which
also decide who lies. The liar trains as it should, and then

    sign flip         sends the opposite of its update
    scaling           sends -30 times its update
    stale             sends the model that it sent in the first round
    label flip        trains on labels 9 - y
    inflated counts   claims a million examples
    inflated losses   claims a loss of 1000 (AFL and DRFA: others do not use losses)

The defenses: "none" takes what comes. "remote" is what Flower has by default: updates of more than three times the
median length are shortened, those of more than a hundred times are left out, and so are losses of more than a hundred
times the median. "caps" adds what an experiment can declare: at most 300 examples and a loss of at most 10. The others
are servers (wafl.servers) in addition to "remote", with clients weighted by the examples they claim; "uniform" is the
median with equal weights. A run that ends because of the liar counts as 0.

With --cost, nobody lies: what it costs FedAvg to shorten updates to a multiple of the median length, and in brackets
how many of them are shortened, on data split in several ways.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import options
import wafl
from wafl import servers
from wafl.base.errors import TrainingWarning
from wafl.engine.clients import Admitted, Engine
from wafl.engine.embedded import Embedded
from wafl.engine.failing.tolerant import Arrivals, Tolerant
from wafl.engine.spec import Spec
from wafl.engine.trainer import Trainer
from wafl.parts.messages import Query, Replies, Reply
from wafl.parts.schedule import Schedule
from wafl.results.progress import Progress
from wafl.rounds.admission import REMOTE_CLIP, Exclusion, split
from wafl.tasks.task import Task

CLIENTS = 10
REMOTE, ANY, MEAN = wafl.Tolerance(clip=REMOTE_CLIP), wafl.Caps(), servers.averaging()
DECLARED = wafl.Caps(examples=300, loss=10.0)
Lie = Callable[[Query, Reply, dict[str, Any]], Reply]
"""From an honest reply to what the liar sends; it may remember things."""


def away(query: Query, reply: Reply, times: float) -> Reply:
    moved = {name: query.params + times * (model - query.params) for name, model in reply.vectors.items()}
    return replace(reply, vectors=moved)


def stale(query: Query, reply: Reply, memory: dict[str, Any]) -> Reply:
    return replace(reply, vectors=memory.setdefault("first", reply.vectors) if reply.vectors else {})


LIES: dict[str, Lie] = {
    "sign flip": lambda query, reply, _: away(query, reply, -1.0),
    "scaling": lambda query, reply, _: away(query, reply, -30.0),
    "stale": stale,
    "inflated losses": lambda _, reply, __: replace(reply, loss=torch.full_like(reply.loss, 1000.0)),
}
ATTACKS = ["none", "sign flip", "scaling", "stale", "label flip", "inflated counts"]


@dataclass(frozen=True)
class Defense:
    """What the server does about liars."""

    tolerance: wafl.Tolerance | None = REMOTE
    caps: wafl.Caps = ANY
    server: servers.Aggregating = MEAN
    weights: Any = None


DEFENSES: dict[str, Defense] = {
    "none": Defense(tolerance=None),
    "remote": Defense(),
    "caps": Defense(caps=DECLARED),
    "clipped": Defense(server=servers.clipped(1.0)),
    "median": Defense(server=servers.median()),
    "uniform": Defense(server=servers.median(), weights=wafl.weights.uniform()),
    "trimmed mean": Defense(server=servers.trimmed_mean(0.2)),
    "Krum": Defense(server=servers.krum(1)),
    "multi-Krum": Defense(server=servers.multi_krum(1)),
    "geometric median": Defense(server=servers.geometric_median()),
}


@dataclass(frozen=True)
class Lying(Embedded):
    """Clients in this process, of which one may lie."""

    liar: int | None = None
    lie: Lie | None = None
    claimed: int | None = None
    caps: wafl.Caps = ANY

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.claimed is not None and self.liar is not None:
            sizes = list(self.roster.num_examples)
            sizes[self.liar] = self.claimed
            object.__setattr__(self, "roster", replace(self.roster, num_examples=tuple(sizes)))

    @property
    def fault(self) -> str | None:
        """Why the liar takes no part, if it claims too much."""
        return None if self.claimed is None else self.caps.fault_of_count("examples", self.claimed)

    def engine(self, task: Task, specs: Mapping[int, Spec], group: int, progress: Progress) -> Engine:
        honest = replace(self, tolerance=None, lie=None)
        source = Source(Embedded.engine(honest, task, specs, group, progress), self)
        return source if self.tolerance is None else Tolerant(source, self.tolerance, self.caps)


class Source:
    """What the clients send, lies included."""

    def __init__(self, engine: Engine, clients: Lying) -> None:
        self._engine, self._clients, self._memory = engine, clients, dict[str, Any]()

    def run(self, queries: Sequence[Query], runs: Sequence[int]) -> list[Admitted]:
        """Without a defense: everything counts."""
        arrivals = self.collect(queries, runs, 0)
        return [Admitted(query, joined(each.replies)) for query, each in zip(queries, arrivals, strict=True)]

    def collect(self, queries: Sequence[Query], runs: Sequence[int], attempt: int) -> list[Arrivals]:
        found: list[Arrivals] = []
        for query, answer in zip(queries, self._engine.run(queries, runs), strict=True):
            replies = [self._told(query, reply) for reply in split(answer.replies)]
            liar, fault = self._clients.liar, self._clients.fault
            if fault is not None and liar is not None and self._clients.tolerance is not None:
                found.append(Arrivals([each for each in replies if each.client != liar], [Exclusion(liar, fault)]))
            else:
                found.append(Arrivals(replies))
        return found

    def undo(self, runs: Sequence[int]) -> None: ...

    def _told(self, query: Query, reply: Reply) -> Reply:
        clients = self._clients
        lies = clients.lie is not None and reply.client == clients.liar
        return clients.lie(query, reply, self._memory) if lies and clients.lie is not None else reply


def joined(replies: Sequence[Reply]) -> Replies:
    vectors = {name: torch.stack([reply.vectors[name] for reply in replies]) for name in replies[0].vectors}
    loss, cost = (torch.stack([getattr(reply, name) for reply in replies]) for name in ("loss", "cost"))
    return Replies(tuple(reply.client for reply in replies), loss, cost, vectors)


def flipped(clients: wafl.Federation, liar: int) -> wafl.Federation:
    """The clients, one of which has labels 9 - y."""
    train = clients.train
    labels, (begin, end) = train.y.clone(), train.offsets[liar : liar + 2].tolist()
    labels[begin:end] = 9 - labels[begin:end]
    return replace(clients, train=replace(train, y=labels))


SPLITS: dict[str, dict[str, Any]] = {
    "labels": {"labels_per_client": 5},
    "iid": {"iid": True},
    "dirichlet": {"dirichlet": 0.1},
    "unequal": {"labels_per_client": 5, "sizes": (130, 120)},
}
MULTIPLES = (math.inf, 3.0, 2.0, 1.0)


def cost(clip: float, seed: int, given: argparse.Namespace) -> tuple[float, float]:
    """The accuracy of honest training, and the share of its updates that are shortened, both in percent."""
    clients = wafl.load_dataset("digits").partition(num_clients=CLIENTS, seed=seed, **SPLITS[given.split])
    schedule: dict[str, Any] = {"rounds": given.rounds, "local_epochs": 2, "batch_size": 32, "learning_rate": 0.1}
    tolerance = wafl.Tolerance(clip=clip)
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), seed=seed, tolerance=tolerance, **schedule)
    short = sum(len(record.shortened) for record in run.history)
    return 100.0 * (wafl.evaluate(run, clients).accuracy or 0.0), 100.0 * short / (CLIENTS * given.rounds)


def accuracy(method: wafl.Method, attack: str, defense: Defense, seed: int, given: argparse.Namespace) -> float:
    """Of a training with one liar, in percent."""
    clients = wafl.load_dataset("digits").partition(num_clients=CLIENTS, seed=seed, **SPLITS[given.split])
    liar = seed % CLIENTS
    work: dict[str, Any] = {"local_steps": 1} if method.name == "AFL" else {"local_epochs": 2}
    schedule = Schedule(rounds=given.rounds, batch_size=32, learning_rate=0.1, seed=seed, **work)
    method = replace(method, server=defense.server)
    if defense.weights is not None:
        method = replace(method, client_weights=defense.weights)
    lying = Lying(
        flipped(clients, liar) if attack == "label flip" else clients,
        torch.device("cpu"),
        tolerance=defense.tolerance,
        liar=None if attack == "none" else liar,
        lie=LIES.get(attack),
        claimed=10**6 if attack == "inflated counts" else None,
        caps=defense.caps,
    )
    try:
        (run,) = Trainer(wafl.models.mlr(clients), lying, "cross_entropy", None).train([Spec(method, schedule)])
    except wafl.DivergedError:
        return 0.0
    return 100.0 * (wafl.evaluate(run, clients).accuracy or 0.0)


def shown(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} ± {stdev(values) if len(values) > 1 else 0.0:.1f}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--split", choices=list(SPLITS), default="labels")
    parser.add_argument("--cost", action="store_true", help="what shortening costs honest training")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--attacks", nargs="+", choices=[*ATTACKS, "inflated losses"], default=[])
    parser.add_argument("--defenses", nargs="+", choices=list(DEFENSES), default=list(DEFENSES))
    given = options.read(parser, argv, seeds=[0], rounds=1, attacks=["stale"], defenses=["none", "Krum"])
    warnings.simplefilter("ignore", TrainingWarning)
    rows: list[tuple[str, wafl.Method, str]] = [
        (f"FedAvg, {attack}", wafl.FedAvg(), attack) for attack in ATTACKS if attack in (given.attacks or ATTACKS)
    ]
    for method in (wafl.DRFA(), wafl.AFL()):
        for attack in ("none", "inflated losses"):
            if not given.attacks or attack in given.attacks:
                rows.append((f"{method.name}, {attack}", method, attack))
    console = Console(width=200)
    if given.cost:
        table = Table("data", *(f"clip {multiple:g}" for multiple in MULTIPLES))
        for split in SPLITS:
            given.split, cells = split, list[str]()
            for multiple in MULTIPLES:
                found = [cost(multiple, seed, given) for seed in given.seeds]
                cells.append(f"{shown([each for each, _ in found])} ({fmean(short for _, short in found):.0f}%)")
            table.add_row(split, *cells)
        console.print(table)
        return
    table = Table("method, attack", *given.defenses)
    for name, method, attack in rows:
        cells = list[str]()
        for defense in given.defenses:
            learned = method.client_weights.learns and DEFENSES[defense].weights is not None
            values = [] if learned else [accuracy(method, attack, DEFENSES[defense], s, given) for s in given.seeds]
            cells.append(shown(values) if values else "")
        table.add_row(name, *cells)
    console.print(table)


if __name__ == "__main__":
    main()
