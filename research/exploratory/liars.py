"""Search for the worst lie for each method and defense, and measure the cost of each defense for an honest run.

    python -m research liars [--smallest] [--splits iid labels] [--liars 1 3] [--jobs 2] [--honest]

Digits, ten clients with like data ("iid") or three labels each ("labels"), multinomial logistic regression, two local
epochs per round (AFL: one step, in five times the rounds); accuracy on the test examples of all clients in percent.
Some of the ten lie in every round, all in the same way. A lie has a direction (the opposite of the mean of the liars'
true updates, a fixed random one, or back to the first model), a scale in lengths of that update, and claims of a loss,
a cost and a number of examples. The search begins with the opposite of the update at three times its length and a claim
of three times the examples (AFL and DRFA: of a loss of 99). It changes one part of the lie after another, twice around,
and keeps the change that costs most accuracy. The search uses one seed. All seeds then run the lie that it found and
the first one, and the table shows the worse.

"none" accepts all replies. "Flower" is the default of a deployment: updates are clipped at 2.5 times the median length,
and losses and costs are clipped in the same way. No weight is above twice an equal share, and the updates of clients
above an equal share are clipped earlier, in proportion. The others are servers (wafl.servers) in addition to "Flower".
A cell is the accuracy with the worst lie; "others" is an honest run without the liars. A run that ends because of the
liars counts as 0.

With --honest no client lies: the accuracy under each defense, also with clients of unequal size ("unequal",
"dirichlet") and natural ones ("hospitals", "smartwatch").
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import fmean, stdev
from typing import Any

import torch

import wafl
from benchmarks import options
from wafl import servers
from wafl.base.errors import TooFewRepliesError, TrainingWarning
from wafl.parts.messages import PARAMS, Query, Replies, Reply
from wafl.parts.schedule import Schedule
from wafl.results.progress import Progress
from wafl.tasks.task import Task
from wafl.train.clients import Admitted, Engine
from wafl.train.embedded import Embedded
from wafl.train.loop import Trainer
from wafl.train.spec import Spec
from wafl.train.trust.admission import Arrivals, answer_tolerantly, split

CLIENTS = 10
FLOWER = wafl.Tolerance().settled(remote=True), wafl.Caps().settled(remote=True)


@dataclass(frozen=True)
class Lie:
    """The replies of the liars: a claim of None is the truth, and ``count`` multiplies the number of examples."""

    direction: str = "opposite"
    scale: float = 3.0
    count: int = 1
    loss: float | None = None
    cost: float | None = None

    def __str__(self) -> str:
        parts = [f"{self.direction} x{self.scale:g}"]
        parts += [f"count x{self.count:g}"] if self.count > 1 else []
        parts += [f"{name} {value:g}" for name in ("loss", "cost") if (value := getattr(self, name)) is not None]
        return ", ".join(parts)


TRIED: dict[str, tuple[Any, ...]] = {
    "direction": ("opposite", "random", "back"),
    "scale": (0.3, 1.0, 3.0, 50.0),
    "count": (1, 3, 1000),
    "loss": (None, 0.0, 5.0, 99.0),
    "cost": (None, 0.0, 1000.0),
}
METHODS = {
    "FedAvg": wafl.FedAvg(),
    "WAFL": wafl.WAFL(radius=0.5),
    "AFL": wafl.AFL(),
    "DRFA": wafl.DRFA(),
}
SPLITS: dict[str, dict[str, Any]] = {
    "iid": {"iid": True},
    "labels": {"labels_per_client": 3},
    "unequal": {"labels_per_client": 5, "sizes": (130, 120)},
    "dirichlet": {"dirichlet": 0.1},
    "hospitals": {},
    "smartwatch": {},
}
"""The division of digits among clients; natural data have their own clients."""
SERVERS: dict[str, servers.Aggregating] = {
    "none": servers.averaging(),
    "Flower": servers.averaging(),
    "clipped": servers.clipped(1.0),
    "median": servers.median(),
    "trimmed mean": servers.trimmed_mean(0.2),
    "multi-Krum": servers.multi_krum(1),
    "geometric median": servers.geometric_median(),
}


@dataclass(frozen=True)
class Lying(Embedded):
    """Clients in this process, some of which lie."""

    liars: tuple[int, ...] = ()
    lie: Lie | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lie is not None:
            claimed = [
                size * self.lie.count if client in self.liars else size
                for client, size in enumerate(self.roster.num_examples)
            ]
            object.__setattr__(self, "roster", replace(self.roster, num_examples=tuple(claimed)))

    def engine(self, task: Task, specs: Mapping[int, Spec], group: int, progress: Progress) -> Engine:
        """Return an engine in which some clients lie."""
        honest = replace(self, tolerance=None, lie=None)
        return Lies(Embedded.engine(honest, task, specs, group, progress), self).engine


class Source:
    """A source that sends queries to all clients; a subclass replaces the replies of some."""

    def __init__(self, engine: Engine, clients: Embedded) -> None:
        self._engine, self._defense = engine, (clients.tolerance, clients.caps)
        self._first: torch.Tensor | None = None

    @property
    def engine(self) -> Engine:
        """The engine for the server, with its defense if it has one."""
        tolerance, caps = self._defense
        return self.run if tolerance is None else partial(answer_tolerantly, self.collect, tolerance, caps)

    def run(self, queries: Sequence[Query], runs: Sequence[int]) -> list[Admitted]:
        """Return all replies, without a defense."""
        arrivals = self.collect(queries, runs, 0)
        return [Admitted(query, joined(replies)) for query, (replies, _) in zip(queries, arrivals, strict=True)]

    def collect(self, queries: Sequence[Query], runs: Sequence[int], attempt: int) -> list[Arrivals]:
        """Return the replies of each query."""
        self._first = queries[0].params if self._first is None else self._first
        answers = self._engine(queries, runs)
        return [
            (self.sent(query, answer.replies, run), {})
            for query, answer, run in zip(queries, answers, runs, strict=True)
        ]

    def sent(self, query: Query, replies: Replies, run: int) -> list[Reply]:
        """Return what the server gets for the replies of a run."""
        raise NotImplementedError


def forged(replies: Sequence[Reply], vectors: Mapping[str, torch.Tensor], claims: object) -> list[Reply]:
    """Return these replies with other vectors, and with the loss and the cost that ``claims`` has, if not None."""
    claimed = {name: value for name in ("loss", "cost") if (value := getattr(claims, name)) is not None}
    return [
        replace(reply, vectors=vectors, **{name: torch.full_like(reply.loss, x) for name, x in claimed.items()})
        for reply in replies
    ]


class Lies(Source):
    """The clients' replies, including lies."""

    def __init__(self, engine: Engine, clients: Lying) -> None:
        super().__init__(engine, clients)
        self._clients = clients

    def sent(self, query: Query, replies: Replies, run: int) -> list[Reply]:
        """Return the replies with the liars' replies replaced."""
        lie, honest = self._clients.lie, split(replies)
        lying = [reply for reply in honest if reply.client in self._clients.liars]
        if lie is None or not lying:
            return honest
        vectors = dict[str, torch.Tensor]()
        for name in query.wanted:
            sent = torch.stack([reply.vectors[name] for reply in lying]).mean(0)
            vectors[name] = self._moved(lie, query.params, sent) if name in (PARAMS, *query.iterates) else sent
        return [
            *(reply for reply in honest if reply.client not in self._clients.liars),
            *forged(lying, vectors, lie),
        ]

    def _moved(self, lie: Lie, start: torch.Tensor, sent: torch.Tensor) -> torch.Tensor:
        update = sent - start
        if lie.direction == "opposite":
            return start - lie.scale * update
        random = torch.randn(len(start), generator=torch.Generator().manual_seed(1)).to(start)
        aim = random if lie.direction == "random" or self._first is None else self._first - start
        return start + lie.scale * update.norm() / aim.norm().clamp_min(1e-12) * aim


def joined(replies: Sequence[Reply]) -> Replies:
    """Return replies of clients as one object, in the order of the clients."""
    order = sorted(replies, key=lambda reply: reply.client)
    vectors = {name: torch.stack([reply.vectors[name] for reply in order]) for name in order[0].vectors}
    loss, cost = (torch.stack([getattr(reply, name) for reply in order]) for name in ("loss", "cost"))
    return Replies(tuple(reply.client for reply in order), loss, cost, vectors)


@cache
def federation(kind: str, seed: int) -> wafl.Federation:
    """Return the clients of a split."""
    if not SPLITS[kind]:
        return wafl.load_dataset(kind).partition(seed=seed)
    return wafl.load_dataset("digits").partition(num_clients=CLIENTS, seed=seed, **SPLITS[kind])


@dataclass(frozen=True)
class Trial:
    """One training to measure; without a ``lie``, it is the honest run of the clients that do not lie."""

    method: str
    defense: str
    split: str
    liars: int
    rounds: int
    lie: Lie | None = None

    def accuracy(self, seed: int) -> float:
        """Return the accuracy on the test examples of all clients, in percent."""
        warnings.simplefilter("ignore", TrainingWarning)
        clients, method = federation(self.split, seed), METHODS[self.method]
        liars = tuple((seed + 3 * number) % CLIENTS for number in range(self.liars))
        training = clients
        if self.lie is None and liars:
            training = clients.set_apart(liars)[0]
        work: dict[str, Any] = {"local_steps": 1} if self.method == "AFL" else {"local_epochs": 2}
        rounds = 5 * self.rounds if self.method == "AFL" else self.rounds
        schedule = Schedule(rounds=rounds, batch_size=32, learning_rate=0.1, seed=seed, **work)
        tolerance, caps = FLOWER if self.defense != "none" else (None, None)
        lying = Lying(training, torch.device("cpu"), tolerance=tolerance, caps=caps, liars=liars, lie=self.lie)
        spec = Spec(replace(method, server=SERVERS[self.defense]), schedule)
        try:
            (run,) = Trainer(wafl.models.mlr(clients), lying, "cross_entropy", None).train([spec])
        except (wafl.DivergedError, TooFewRepliesError):
            return 0.0
        return 100.0 * (wafl.evaluate(run, clients).accuracy or 0.0)

    def first(self) -> Trial:
        """Return the trial with the first lie of a search."""
        return replace(self, lie=Lie(loss=99.0) if self.method in ("AFL", "DRFA") else Lie(count=3))

    def worst(self) -> Trial:
        """Return the trial with the lie that costs most on the first seed, changing one of its parts at a time."""
        worst = self.first()
        least, seen = worst.accuracy(0), {worst.lie}
        unused = {"loss"} if self.method in ("FedAvg", "WAFL") else set[str]()
        unused |= set() if self.method == "WAFL" else {"cost"}
        for _ in range(2):
            for part, values in TRIED.items():
                for value in values if part not in unused else ():
                    tried = replace(worst, lie=replace(worst.lie or Lie(), **{part: value}))
                    if tried.lie in seen:
                        continue
                    seen.add(tried.lie)
                    if (reached := tried.accuracy(0)) < least:
                        worst, least = tried, reached
        return worst


def measured(trial: Trial, seeds: Sequence[int], search: bool) -> tuple[list[float], str]:
    """Return the accuracy on each seed of a trial, or of its worst lie, and that lie."""
    torch.set_num_threads(1)
    tried = [trial.worst(), trial.first()] if search else [trial]
    accuracies = [([each.accuracy(seed) for seed in seeds], str(each.lie or "")) for each in dict.fromkeys(tried)]
    return min(accuracies, key=lambda pair: fmean(pair[0]))


def shown(values: Sequence[float], lie: str = "") -> str:
    """Format a mean, its standard deviation and the lie."""
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}" + (f" ({lie})" if lie else "")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--defenses", nargs="+", choices=list(SERVERS), default=list(SERVERS))
    parser.add_argument("--splits", nargs="+", choices=list(SPLITS), default=["iid", "labels"])
    parser.add_argument("--liars", nargs="+", type=int, default=[1, 3])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--honest", action="store_true", help="the cost of each defense if no client lies")
    small = {"methods": ["FedAvg"], "defenses": ["Flower"], "splits": ["iid"], "liars": [1], "seeds": [0], "rounds": 1}
    given = options.read(parser, argv, **small)
    rows = [
        [Trial(method, "none", split, liars, given.rounds)]
        + [Trial(method, defense, split, liars, given.rounds) for defense in given.defenses]
        for split in given.splits
        for method in given.methods
        for liars in ([0] if given.honest else given.liars)
    ]
    print_table(rows, given)


def print_table(rows: Sequence[Sequence[Trial]], given: argparse.Namespace) -> None:
    """Print one row per method, split and number of liars, and one column per defense, as Markdown."""
    print("| data | method | liars | others | " + " | ".join(given.defenses) + " |")
    print("| --- " * (4 + len(given.defenses)) + "|")
    trials = [(each, column > 0 and each.liars > 0) for row in rows for column, each in enumerate(row)]
    with ProcessPoolExecutor(given.jobs) if given.jobs > 1 else nullcontext() as pool:
        do = map if pool is None else pool.map
        results = do(measured, *zip(*((each, given.seeds, search) for each, search in trials), strict=True))
        for row in rows:
            cells = [shown(*next(results)) for _ in row]
            print("| " + " | ".join([row[0].split, row[0].method, str(row[0].liars), *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
