"""Attacks of malicious nodes that know everything, and a set of clients of which some attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from research.exploratory.liars import Source, forged
from wafl.parts.messages import PARAMS, Query, Replies, Reply
from wafl.results.progress import Progress
from wafl.tasks.problem import Problem
from wafl.tasks.task import Task
from wafl.train.clients import Engine
from wafl.train.embedded import Embedded
from wafl.train.spec import Spec
from wafl.train.trust.admission import split

CLASSES = 10
NOTHING = torch.empty(0), torch.empty(0)


@dataclass(frozen=True)
class Scene:
    """The malicious nodes' knowledge about a round, for one vector that clients send."""

    start: Tensor
    honest: Tensor
    """The honest models, one row each."""
    first: Tensor
    pull: Callable[[Callable[[Tensor], Tensor], int | None], Tensor]
    """The descent of the loss at ``start``, given a function that changes labels, and one class of examples or None."""


def opposite(scene: Scene) -> Tensor:
    """Return the opposite of the honest update."""
    return scene.start - scene.honest.mean(0)


def opposite_signs(scene: Scene) -> Tensor:
    """Return the signs against the honest update, scaled by the spread of the honest models."""
    return -(scene.honest.mean(0) - scene.start).sign() * scene.honest.std(0)


def back(scene: Scene) -> Tensor:
    """Return the move back to the first model."""
    return scene.first - scene.start


def random(scene: Scene) -> Tensor:
    """Return a fixed random direction."""
    return torch.randn(len(scene.start), generator=torch.Generator().manual_seed(1)).to(scene.start)


def next_label(scene: Scene) -> Tensor:
    """Return the descent for labels that are moved by one."""
    return scene.pull(lambda y: (y + 1) % CLASSES, None)


def flip(one: int, other: int) -> Callable[[Scene], Tensor]:
    """Return a direction that moves one class to another."""
    return lambda scene: scene.pull(lambda y: torch.full_like(y, other), one)


CENTERS = "start", "mean"
"""The start of an attack: the server's model, or the mean of the honest models."""
AIMS: dict[str, Callable[[Scene], Tensor]] = {
    "opposite": opposite,
    "opposite signs": opposite_signs,
    "back": back,
    "random": random,
    "next label": next_label,
    "8 as 3": flip(8, 3),
    "1 as 8": flip(1, 8),
    "9 as 5": flip(9, 5),
}


@dataclass(frozen=True)
class Attack:
    """The reply of all malicious nodes; a claim of None is the truth."""

    aim: str
    center: str
    scale: float
    count: int = 1
    loss: float | None = None
    cost: float | None = None

    def __str__(self) -> str:
        parts = [f"{self.aim} x{self.scale:g}" + (" from the honest mean" if self.center == "mean" else "")]
        parts += [f"count x{self.count:g}"] if self.count > 1 else []
        parts += [f"{name} {value:g}" for name in ("loss", "cost") if (value := getattr(self, name)) is not None]
        return ", ".join(parts)

    def model(self, scene: Scene) -> Tensor:
        """Return the model that the malicious nodes send."""
        mean = scene.honest.mean(0)
        if self.center == "mean":
            center, length = mean, (scene.honest - mean).norm(dim=1).median()
        else:
            center, length = scene.start, (scene.honest - scene.start).norm(dim=1).median()
        direction = AIMS[self.aim](scene)
        return center + self.scale * length * direction / direction.norm().clamp_min(1e-12)


@dataclass(frozen=True)
class Attacked(Embedded):
    """Clients in this process, some of which are malicious: in run i they use ``attacks[i]``, if there is one."""

    malicious: tuple[int, ...] = ()
    attacks: tuple[Attack | None, ...] = ()
    count: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = enumerate(self.roster.num_examples)
        claimed = tuple(size * (self.count or 1 if client in self.malicious else 1) for client, size in sizes)
        object.__setattr__(self, "roster", replace(self.roster, num_examples=claimed))

    def engine(self, task: Task, specs: Mapping[int, Spec], group: int, progress: Progress) -> Engine:
        """Return an engine in which the malicious clients attack."""
        honest = Attacked(self.federation, self.device, malicious=self.malicious)
        return Attacks(Embedded.engine(honest, task, specs, group, progress), self, task).engine


class Attacks(Source):
    """A source that replaces the replies of the malicious clients."""

    def __init__(self, engine: Engine, clients: Attacked, task: Task) -> None:
        super().__init__(engine, clients)
        self._clients, self._task = clients, task
        parts = [clients.federation.train.of(client) for client in clients.malicious]
        self._x, self._y = (torch.cat(values) for values in zip(*parts, strict=True)) if parts else NOTHING

    def sent(self, query: Query, replies: Replies, run: int) -> list[Reply]:
        """Return the replies with the malicious ones replaced."""
        attack = self._clients.attacks[run]
        every = split(replies)
        own = [reply for reply in every if reply.client in self._clients.malicious]
        honest = [reply for reply in every if reply.client not in self._clients.malicious]
        if attack is None or not own:
            return every
        vectors = dict[str, Tensor]()
        for name in query.wanted:
            models = torch.stack([reply.vectors[name] for reply in honest or own])
            assert name in (PARAMS, *query.iterates), name
            assert self._first is not None
            pull = partial(self._pull, query.params)
            vectors[name] = attack.model(Scene(query.params, models, self._first, pull))
        return [*honest, *forged(own, vectors, attack)]

    def _pull(self, start: Tensor, relabeled: Callable[[Tensor], Tensor], only: int | None) -> Tensor:
        chosen = torch.ones_like(self._y, dtype=torch.bool) if only is None else self._y == only
        if not bool(chosen.any()):  # the malicious nodes have no such example
            return torch.zeros_like(start)
        x, y = self._x[chosen][None].to(start), relabeled(self._y[chosen])[None]
        return -Problem(self._task, start[None]).descent(x, y, torch.full(y.shape, 1.0 / y.shape[1]))[0]
