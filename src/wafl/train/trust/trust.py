"""How far clients are believed: no weight, update, loss or cost counts for much more than is usual in its round.

What is usual is a median over nodes, each of which has one vote, whatever it claims. Nothing here leaves a client out.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from wafl.objectives.ball.client_cost_matrix import ClassMeans
from wafl.parts.lengths import by_node, lengths_of, longest_of, shortened
from wafl.parts.messages import PARAMS, Query, Replies, weighted_mean
from wafl.parts.server import Update
from wafl.train.trust.admission import Admitted
from wafl.train.trust.caps import DOUBLE, Share

FEW = 3
"""With fewer nodes than this nobody can be compared."""
ROUNDING = 1.0 + 1e-9


@dataclass(frozen=True)
class Shares:
    """The weight of each node, of ``owner[i]`` for client i, and of which ``most`` may be exceeded only by the free."""

    owner: Tensor
    of_nodes: Tensor
    most: float
    free: Tensor

    @classmethod
    def of(cls, weights: Tensor, share: Share, nodes: Sequence[int] = (), free: Collection[int] = ()) -> Self:
        """Of clients with these weights, on these nodes (each on its own if none are given), of whom some are free."""
        owner = torch.unique(torch.tensor(nodes or range(len(weights))), return_inverse=True)[1]
        total = weights.new_zeros(int(owner.max()) + 1).index_add_(0, owner, weights)
        bound = torch.tensor([index not in free for index in range(len(weights))])
        held = torch.zeros(len(total), dtype=torch.long).index_add_(0, owner, bound.long())
        double = 1.0 if len(total) < FEW else min(0.5, 2.0 / len(total))
        return cls(owner, total / total.sum(), double if share == DOUBLE else share, held == 0)

    @property
    def at_most(self) -> Tensor:
        """Which clients are on nodes that count for as much as a node may."""
        return (~self.free & (self.of_nodes * ROUNDING >= self.most))[self.owner] & (self.most < 1.0)

    @property
    def reach(self) -> Tensor:
        """How much of the longest update each client may send: whoever counts for two, unvouched, goes half as far."""
        equal = 1.0 / (len(self.of_nodes) * self.of_nodes.clamp_min(1e-300))
        within = self.free | (self.of_nodes <= ROUNDING / len(self.of_nodes)) | (self.most >= 1.0)
        return torch.where(within, 1.0, equal)[self.owner]

    def capped(self, weights: Tensor) -> Tensor:
        """The weights without what exceeds the share of a node, which goes to the others in proportion.

        If none exceeds it, they have the same bits; if all others weigh nothing, they share it equally.
        """
        shares, full = self.of_nodes, torch.zeros_like(self.free)
        while bool((over := ~full & ~self.free & (shares > ROUNDING * self.most)).any()):
            full |= over
            if bool(full.all()):  # the share is below an equal one
                shares = torch.full_like(shares, 1.0 / len(shares))
                break
            rest, others = 1.0 - self.most * int(full.sum()), torch.where(full, 0.0, self.of_nodes)
            others = others if float(others.sum()) > 0 else (~full).to(shares)
            shares = torch.where(full, self.most, max(rest, 0.0) * others / others.sum())
        if not bool(full.any()):
            return weights
        before, total = self.of_nodes[self.owner], weights.sum()
        alike = 1.0 / torch.bincount(self.owner)[self.owner]
        return total * shares[self.owner] * torch.where(before > 0, weights / (total * before), alike)


@dataclass(frozen=True)
class Trust:
    """How far clients are believed; by default in everything.

    ``clip`` is the multiple of a median that an update's length, a loss or a cost may count for, ``share`` the largest
    weight of a node, and ``declared`` are clients whose sizes are known, so that no weight by counts of theirs is
    capped. ``nodes`` has the node of each client; empty if every client is by itself. ``clip_loss`` is the multiple for
    losses, of the median of the other nodes; if it is None, ``clip`` limits losses, too.
    """

    clip: float = math.inf
    share: Share = 1.0
    declared: frozenset[int] = frozenset()
    nodes: tuple[int, ...] = ()
    clip_loss: float | None = None

    def nodes_of(self, clients: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.nodes[client] for client in clients) if self.nodes else ()

    def shares(self, weights: Tensor, clients: Sequence[int]) -> Shares:
        """What the nodes of these clients count for if the clients have these weights."""
        free = [index for index, client in enumerate(clients) if client in self.declared]
        return Shares.of(weights, self.share, self.nodes_of(clients), free)

    def capped(self, weights: Tensor, clients: Sequence[int]) -> Tensor:
        """The weights of all clients after those of these clients, who alone count, have been capped."""
        if self.share == 1.0 or not float(weights.sum()) > 0:
            return weights
        indices = sorted({*clients, *weights.nonzero()[:, 0].tolist()})
        limited = self.shares(weights[indices], indices).capped(weights[indices])
        return weights.index_put((torch.tensor(indices),), limited)

    def largest(self, sizes: Sequence[int]) -> int:
        """The size of the largest client, as far as it is believed: within ``clip`` times the median."""
        if self.clip == math.inf or len(sizes) < FEW:
            return max(sizes)
        known = [size for client, size in enumerate(sizes) if client in self.declared]
        usual = float(by_node(torch.tensor(sizes, dtype=torch.float64), self.nodes).median())
        return max(*known, min(max(sizes), math.ceil(self.clip * usual)), 1)

    def of_examples(self, sums: Sequence[float], sizes: Sequence[int]) -> tuple[list[float], list[float]]:
        """Sums over the examples of each client, and how many they are, as far as clients are believed.

        No client's mean, which cannot be negative, counts for more than ``clip`` times the median, and no client has
        more than its share of the examples; what is not limited has the same bits.
        """
        totals, counts = (torch.tensor(values, dtype=torch.float64) for values in (sums, sizes))
        means, held = totals / counts.clamp_min(1.0), self.capped(counts, range(len(sizes)))
        within = means.clamp(max=longest_of(means, self.clip, self.nodes))
        return torch.where((within < means) | (held != counts), within * held, totals).tolist(), held.tolist()

    def of_classes(self, classes: ClassMeans) -> ClassMeans:
        """The means of the clients' classes as far as they are believed; what is not limited has the same bits.

        None is more than ``clip`` times as far from the median of its class as is usual, and no client has more than
        its share of the examples.
        """
        if self.clip == math.inf and self.share == 1.0:
            return classes
        owners = classes.clients.tolist()
        sizes = torch.tensor(classes.sizes(max(owners) + 1), dtype=torch.float64)
        held = self.capped(sizes, range(len(sizes))) / sizes
        labels, of_class = classes.labels.unique(return_inverse=True)
        centers = torch.stack([classes.means[classes.labels == label].median(0).values for label in labels])[of_class]
        away = classes.means - centers
        lengths = away.norm(dim=1)
        longest = longest_of(lengths, self.clip, self.nodes_of(owners) or owners)
        share = (longest / lengths.clamp_min(1e-300))[:, None]
        means = torch.where(share < 1.0, centers + share * away, classes.means)
        return replace(classes, means=means, counts=classes.counts * held[classes.clients])

    def bound(self, answer: Admitted, *, decides: bool, aimed: float | None) -> Admitted:
        """The answer as far as it is believed; what is not limited has the same bits.

        Args:
            answer: the replies that count.
            decides: whether their losses decide the clients' weights.
            aimed: the mean cost that gamma is learned for; None if it is not learned.
        """
        query, replies, notes = answer.query, answer.replies, list[tuple[int, str]]()
        if (self.clip == math.inf and self.share == 1.0 and self.clip_loss is None) or not replies.clients:
            return answer
        enough = len(set(query.nodes or query.clients)) >= FEW
        reach = torch.ones(len(replies.clients), dtype=torch.float64)
        if query.kind == "train" and float(query.weights.sum()) > 0:
            query = replace(query, weights=self.shares(query.weights, query.clients).capped(query.weights))
            shares = self.shares(query.weights, query.clients)
            reach = shares.reach
            weights = (query.weights / query.weights.sum()).tolist()
            held = zip(query.clients, weights, shares.at_most.tolist(), strict=True)
            notes += [(client, f"a weight held at {weight:.3g}") for client, weight, full in held if full]
        loss, cost = replies.loss, replies.cost
        if decides and enough:
            loss = _within(loss, self._highest_losses(loss, query))
            notes += _lowered("loss", replies.clients, replies.loss, loss)
        if aimed is not None and enough:
            cost = _within(cost, cost.new_tensor(self.clip * (_median(cost, query) or aimed)))
            notes += _lowered("cost", replies.clients, replies.cost, cost)
        vectors, short = self._shortened(query, replies, reach)
        believed = replace(replies, loss=loss, cost=cost, vectors=vectors)
        return replace(answer, query=query, replies=believed, shortened=short, limited=(*answer.limited, *notes))

    def _highest_losses(self, loss: Tensor, query: Query) -> Tensor:
        """Return the loss that each client may count for."""
        if self.clip_loss is None:
            return loss.new_tensor(self.clip * max(abs(_median(loss, query)), 1.0)).expand_as(loss)
        return self.clip_loss * _median_of_others(loss, query.nodes).abs()

    def _shortened(
        self, query: Query, replies: Replies, reach: Tensor
    ) -> tuple[Mapping[str, Tensor], dict[int, float]]:
        """The vectors with models that are not too far from where they started, and the share of each length kept.

        What a local step sends in addition is not a model, and stays as it is.
        """
        models, kept = dict(replies.vectors), dict[int, float]()
        for name in (PARAMS, *query.iterates) if PARAMS in models else ():
            lengths = lengths_of(query.params, models[name])
            longest = reach.to(lengths) * longest_of(lengths, self.clip, query.nodes)
            models[name] = shortened(query.params, models[name], lengths, longest)
            if name == PARAMS:
                rows = zip(replies.clients, lengths.tolist(), longest.tolist(), strict=True)
                kept = {client: most / length for client, length, most in rows if length > most}
        return models, kept


def per_node(update: Update, nodes: Sequence[int]) -> Update:
    """Return the update with one row per node: the sum of its clients' weights and sizes, the mean of all else.

    ``nodes`` has the node of each row; empty if every client is by itself.
    """
    if len(set(nodes)) == len(nodes):
        return update
    rows = [[row for row, node in enumerate(nodes) if node == each] for each in dict.fromkeys(nodes)]
    inside = [update.weights[each] for each in rows]
    inside = [each if float(each.sum()) > 0 else torch.ones_like(each) for each in inside]

    def total(values: Tensor) -> Tensor:
        return torch.stack([values[each].sum() for each in rows])

    def mean(values: Tensor) -> Tensor:
        return torch.stack([weighted_mean(each, values[row]) for each, row in zip(inside, rows, strict=True)])

    return replace(
        update,
        params=mean(update.params),
        weights=total(update.weights),
        shares=total(update.shares),
        steps=mean(update.steps),
        sizes=total(update.sizes),
        losses=mean(update.losses),
        costs=mean(update.costs),
        vectors={name: mean(vector) for name, vector in update.vectors.items()},
    )


def _median(values: Tensor, query: Query) -> float:
    return float(by_node(values.double(), query.nodes).median())


def _median_of_others(values: Tensor, nodes: Sequence[int]) -> Tensor:
    """For each client, the lower median over the other nodes."""
    votes, home = by_node(values, nodes), torch.arange(len(values))
    if len(votes) < len(values):
        numbers = list(dict.fromkeys(nodes))
        home = torch.tensor([numbers.index(node) for node in nodes])
    ordered, order = votes.sort()
    middle = (len(votes) - 2) // 2
    return torch.where(order.argsort() <= middle, ordered[middle + 1], ordered[middle])[home]


def _within(values: Tensor, most: Tensor) -> Tensor:
    return torch.where(values.abs() > most, values.clamp(-most, most), values)


def _lowered(what: str, clients: Sequence[int], before: Tensor, after: Tensor) -> list[tuple[int, str]]:
    """What is said of clients whose number counts for less than they claim."""
    rows = zip(clients, before.tolist(), after.tolist(), strict=True)
    return [(client, f"a {what} of {old:.3g}, counted as {new:.3g}") for client, old, new in rows if old != new]
