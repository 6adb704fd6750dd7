"""The server's part of a round: from the clients' replies to the next model, the next memory and the snapshots."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wafl.parts.client_weights import ClientWeights
from wafl.parts.messages import PARAMS, Query, Replies, State, Vectors, owned, weighted_mean
from wafl.parts.schedule import LocalWork
from wafl.parts.server import Server
from wafl.parts.update import Update
from wafl.train.reported_losses import damped
from wafl.train.trust.trust import per_node


@dataclass(frozen=True)
class ServerStep:
    """The result of the server's part of a round; ``mean`` is the weighted mean of the clients' models."""

    params: Tensor
    memory: Vectors
    snapshots: Vectors
    mean: Tensor


def server_step(
    server: Server, rule: ClientWeights, state: State, query: Query, update: Update, num_statistics: int = 0
) -> ServerStep:
    """Let the server take its step, which the rule for the client weights may shorten; average the statistics.

    The last ``num_statistics`` parameters are statistics. The server does not see them: their next value is the mean.
    """
    trained, mean = len(update.start) - num_statistics, update.mean()
    memory = owned("server", state.vectors)
    memory = {name: value[:trained] for name, value in memory.items()}  # older checkpoints have statistics here too
    params, memory = server.step(_seen(server, update, query.nodes, trained), memory)
    params = damped(rule, state, query, _first(update, trained), params)
    params = torch.cat([params, mean[trained:]]) if num_statistics else params
    snapshots = {name: _snapshot(server, update, name, query, trained) for name in query.iterates}
    return ServerStep(params, memory, snapshots, mean)


def update_of(state: State, query: Query, replies: Replies, work: LocalWork, num_examples: Sequence[int]) -> Update:
    """Return the replies as an update with one row per client, statistics and snapshots included."""
    clients = list(replies.clients)
    sizes = [num_examples[client] for client in clients]
    return Update(
        start=state.params,
        params=replies.params,
        weights=query.weights,
        shares=state.client_weights[clients],
        steps=torch.tensor(work.num_steps(sizes)).to(replies.params),
        sizes=torch.tensor(sizes, dtype=torch.float64),
        losses=replies.loss,
        costs=replies.cost,
        num_clients=len(num_examples),
        vectors={name: rows for name, rows in replies.vectors.items() if name != PARAMS},
        average=weighted_mean(query.weights, replies.params),
    )


def _seen(server: Server, update: Update, nodes: Sequence[int], trained: int) -> Update:
    """Return what the server sees of an update: no statistics, and one row per node if it asks for that."""
    seen = per_node(update, nodes) if server.one_per_node and not server.averages else update
    return _first(seen, trained)


def _first(update: Update, count: int) -> Update:
    """Return the update of the first ``count`` parameters."""
    vectors = {name: rows[:, :count] for name, rows in update.vectors.items()}
    # The mean of all columns is cut, not computed again: a product of another width may have other last bits.
    models = {"start": update.start[:count], "params": update.params[:, :count], "average": update.mean()[:count]}
    return replace(update, **models, vectors=vectors)


def _snapshot(server: Server, update: Update, name: str, query: Query, trained: int) -> Tensor:
    """Return the server's aggregate of the clients' snapshots of this name, with the mean of their statistics."""
    rows, steps = update.vectors[name], update.steps.clamp(max=query.iterates[name])
    taken = replace(update, params=rows, steps=steps, average=update.mean(rows))
    aggregate = server.aggregate(_seen(server, taken, query.nodes, trained))
    return torch.cat([aggregate, taken.mean()[trained:]])
