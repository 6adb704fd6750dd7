"""Limit the influence of clients: no weight, update, loss or cost counts for much more than usual in its round.

The usual value is a median over nodes, each of which has one vote, whatever it claims. Nothing here excludes a client.
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
"""The minimum number of nodes for a comparison."""
ROUNDING = 1.0 + 1e-9


@dataclass(frozen=True)
class Shares:
    """The weight of each node, with ``owner[i]`` for client i; only ``free`` nodes may exceed ``most``."""

    owner: Tensor
    of_nodes: Tensor
    most: float
    free: Tensor

    @classmethod
    def of(cls, weights: Tensor, share: Share, nodes: Sequence[int] = (), free: Collection[int] = ()) -> Self:
        """Return the shares of clients with these weights on these nodes, by default one node each; some are free."""
        owner = torch.unique(torch.tensor(nodes or range(len(weights))), return_inverse=True)[1]
        total = weights.new_zeros(int(owner.max()) + 1).index_add_(0, owner, weights)
        bound = torch.tensor([index not in free for index in range(len(weights))])
        held = torch.zeros(len(total), dtype=torch.long).index_add_(0, owner, bound.long())
        double = 1.0 if len(total) < FEW else min(0.5, 2.0 / len(total))
        return cls(owner, total / total.sum(), double if share == DOUBLE else share, held == 0)

    @property
    def at_most(self) -> Tensor:
        """Whether each client is on a node with the maximum weight."""
        return (~self.free & (self.of_nodes * ROUNDING >= self.most))[self.owner] & (self.most < 1.0)

    @property
    def reach(self) -> Tensor:
        """The fraction of the maximum update length for each client.

        A client with twice an equal weight, not vouched for, may move half as far.
        """
        equal = 1.0 / (len(self.of_nodes) * self.of_nodes.clamp_min(1e-300))
        within = self.free | (self.of_nodes <= ROUNDING / len(self.of_nodes)) | (self.most >= 1.0)
        return torch.where(within, 1.0, equal)[self.owner]

    def capped(self, weights: Tensor) -> Tensor:
        """Return the weights without any node's excess, which is divided among the others in proportion.

        If no node has an excess, the weights have the same bits. If all others have weight zero, they share the excess
        equally.
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
    """The limits of trust in clients; the default has no limits.

    ``clip`` is the limit of an update's length, a loss or a cost, as a multiple of a median. ``share`` is the maximum
    weight of a node. ``declared`` are clients with known sizes, whose weights by counts are not capped. ``nodes``
    contains the node of each client; empty if every client is its own node. ``clip_loss`` is the multiple for losses,
    of the median of the other nodes; if it is None, ``clip`` limits losses, too.
    """

    clip: float = math.inf
    share: Share = 1.0
    declared: frozenset[int] = frozenset()
    nodes: tuple[int, ...] = ()
    clip_loss: float | None = None

    def nodes_of(self, clients: Sequence[int]) -> tuple[int, ...]:
        """Return the nodes of these clients."""
        return tuple(self.nodes[client] for client in clients) if self.nodes else ()

    def shares(self, weights: Tensor, clients: Sequence[int]) -> Shares:
        """Return the shares of these clients' nodes, given the clients' weights."""
        free = [index for index, client in enumerate(clients) if client in self.declared]
        return Shares.of(weights, self.share, self.nodes_of(clients), free)

    def capped(self, weights: Tensor, clients: Sequence[int]) -> Tensor:
        """Return the weights of all clients after capping these clients, the only ones that count."""
        if self.share == 1.0 or not float(weights.sum()) > 0:
            return weights
        indices = sorted({*clients, *weights.nonzero()[:, 0].tolist()})
        limited = self.shares(weights[indices], indices).capped(weights[indices])
        return weights.index_put((torch.tensor(indices),), limited)

    def largest(self, sizes: Sequence[int]) -> int:
        """Return the size of the largest client, limited to ``clip`` times the median."""
        if self.clip == math.inf or len(sizes) < FEW:
            return max(sizes)
        known = [size for client, size in enumerate(sizes) if client in self.declared]
        usual = float(by_node(torch.tensor(sizes, dtype=torch.float64), self.nodes).median())
        return max(*known, min(max(sizes), math.ceil(self.clip * usual)), 1)

    def of_examples(self, sums: Sequence[float], sizes: Sequence[int]) -> tuple[list[float], list[float]]:
        """Return sums over the examples of each client, and their numbers, limited by trust.

        No client's mean, which cannot be negative, counts for more than ``clip`` times the median, and no client has
        more than its share of the examples; unlimited values have the same bits.
        """
        totals, counts = (torch.tensor(values, dtype=torch.float64) for values in (sums, sizes))
        means, held = totals / counts.clamp_min(1.0), self.capped(counts, range(len(sizes)))
        within = means.clamp(max=longest_of(means, self.clip, self.nodes))
        return torch.where((within < means) | (held != counts), within * held, totals).tolist(), held.tolist()

    def of_classes(self, classes: ClassMeans) -> ClassMeans:
        """Return the means of the clients' classes, limited by trust; unlimited values have the same bits.

        No mean is more than ``clip`` times as far from its class's median as usual, and no client has more than its
        share of the examples.
        """
        if (self.clip == math.inf and self.share == 1.0) or not len(classes.labels):
            return classes
        owners = classes.clients.tolist()
        sizes = torch.tensor(classes.sizes(max(owners) + 1), dtype=torch.float64)
        held = self.capped(sizes, range(len(sizes))) / sizes
        halves, owners = classes.means.flatten(0, 1), [owner for owner in owners for _ in range(2)]
        names = classes.labels.repeat_interleave(2)
        labels, of_class = names.unique(return_inverse=True)
        centers = torch.stack([halves[names == label].median(0).values for label in labels])[of_class]
        away = halves - centers
        lengths = away.norm(dim=1)
        longest = longest_of(lengths, self.clip, self.nodes_of(owners) or owners)
        share = (longest / lengths.clamp_min(1e-300))[:, None]
        means = torch.where(share < 1.0, centers + share * away, halves).view_as(classes.means)
        return replace(classes, means=means, counts=classes.counts * held[classes.clients])

    def bound(self, answer: Admitted, *, decides: bool, aimed: float | None) -> Admitted:
        """Return the answer, limited by trust; unlimited values have the same bits.

        Args:
            answer: the valid replies.
            decides: whether their losses determine the clients' weights.
            aimed: the mean cost for which gamma is learned; None if gamma is fixed.
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
        """Return the maximum loss of each client."""
        if self.clip_loss is None:
            return loss.new_tensor(self.clip * max(abs(_median(loss, query)), 1.0)).expand_as(loss)
        return self.clip_loss * _median_of_others(loss, query.nodes).abs()

    def _shortened(
        self, query: Query, replies: Replies, reach: Tensor
    ) -> tuple[Mapping[str, Tensor], dict[int, float]]:
        """Return the vectors with models at a limited distance from the start, and the remaining fractions.

        Other vectors of a local step are not models, and do not change.
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

    ``nodes`` contains the node of each row; empty if every client is its own node.
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
    """Return, for each client, the lower median over the other nodes."""
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
    """Describe the clients whose claim was reduced."""
    rows = zip(clients, before.tolist(), after.tolist(), strict=True)
    return [(client, f"a {what} of {old:.3g}, counted as {new:.3g}") for client, old, new in rows if old != new]
