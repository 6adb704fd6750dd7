"""Compute the next model from the clients' models, and client weights from their losses.

Some rules for the client weights request losses in a separate query: before a round trains (q-FFL, Scaff-PD), or at a
snapshot (DRFA). The state's vectors contain the values that the end of a round and the next round need, so a checkpoint
contains them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wafl.parts.client_weights import ClientWeights, LossQuery, Round
from wafl.parts.local_step import LocalStep
from wafl.parts.messages import PARAMS, Query, Replies, State, named, owned, weighted_mean
from wafl.parts.schedule import LocalWork
from wafl.parts.server import Server, Update
from wafl.train.trust.trust import per_node

SNAPSHOT = "snapshot"
"""The vector at which clients report their loss, if the client weights are learned at a snapshot."""
Cap = Callable[[Tensor, Sequence[int]], Tensor]
"""A function of all clients' weights and the reporting clients that returns the weights, none above its share."""
LOSSES, LAST_LOSSES = "losses", "last_losses"
"""Each client's reported loss before this round trains, and before the last one; NaN if missing."""


def server_step(
    server: Server, rule: ClientWeights, state: State, query: Query, update: Update, trained: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Take the server's step, which the rule for the client weights may shorten, and average the statistics.

    Only the first ``trained`` parameters are not statistics. The server does not see the statistics: their next value
    is the mean. Returns the next parameters, and the vectors to remember: the server's memory and snapshots.
    """
    memory = owned("server", state.vectors)
    memory = {name: value[:trained] for name, value in memory.items()}  # older checkpoints contain statistics here too
    params, memory = server.step(_seen(server, update, query.nodes, trained), memory)
    if params.shape != (trained,):
        raise ValueError(
            f"step() of server={server} returned parameters of shape {list(params.shape)}, but the model has shape "
            f"[{trained}]: return one value per parameter, not one row per client"
        )
    params = damped(rule, state, query, _first(update, trained), params)
    snapshots = {name: _snapshot(server, update, name, query, trained) for name in query.iterates}
    params = torch.cat([params, update.mean()[trained:]]) if trained < len(update.start) else params
    return params, {**named("server", memory), **snapshots}


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
    """Return the server's view of an update: without statistics, and with one row per node if requested."""
    seen = per_node(update, nodes) if server.one_per_node and not server.averages else update
    return _first(seen, trained)


def _first(update: Update, count: int) -> Update:
    """Return the update of the first ``count`` parameters."""
    vectors = {name: rows[:, :count] for name, rows in update.vectors.items()}
    # The mean of all columns is cut, not computed again: a product of a different width may have different last bits.
    models = {"start": update.start[:count], "params": update.params[:, :count], "average": update.mean()[:count]}
    return replace(update, **models, vectors=vectors)


def _snapshot(server: Server, update: Update, name: str, query: Query, trained: int) -> Tensor:
    """Return the server's aggregate of the clients' snapshots of this name, with the mean of their statistics."""
    rows, steps = update.vectors[name], update.steps.clamp(max=query.iterates[name])
    taken = replace(update, params=rows, steps=steps, average=update.mean(rows))
    aggregate = server.aggregate(_seen(server, taken, query.nodes, trained))
    return torch.cat([aggregate, taken.mean()[trained:]])


def params_to_report(state: State, asked: LossQuery | None) -> Tensor | None:
    """Return the parameters at which clients report their losses now, or None if no report is due."""
    if asked is None:
        return None
    if asked.step:
        return state.vectors.get(SNAPSHOT)
    return None if LOSSES in state.vectors else state.params


def after_losses(rule: ClientWeights, local: LocalStep, state: State, replies: Replies, now: Round, cap: Cap) -> State:
    """Return the state after the clients' reports.

    A round with a snapshot ends; another round stores the losses until its end.
    """
    after = with_learned_weights(rule, state, replies, now, cap)
    if SNAPSHOT in state.vectors:
        return ended(rule, after)
    asked = list(replies.clients)
    vectors = local.tell_reports(owned("local", state.vectors), replies, after.client_weights[asked])
    return with_losses(replace(after, vectors={**state.vectors, **named("local", vectors)}), replies)


def with_losses(state: State, replies: Replies) -> State:
    """Return the state with the losses in these replies, stored until the end of the round."""
    losses = torch.full_like(state.client_weights, torch.nan)
    losses[list(replies.clients)] = replies.loss.to(losses)
    return replace(state, vectors={**state.vectors, LOSSES: losses})


def with_learned_weights(rule: ClientWeights, state: State, replies: Replies, now: Round, cap: Cap) -> State:
    """Return the state with the client weights that the rule learns from the losses in these replies."""
    last = state.vectors.get(LAST_LOSSES)
    if last is not None:  # clients that have joined since then did not report
        last = torch.cat([last, last.new_full((len(state.client_weights) - len(last),), torch.nan)])
    now = replace(now, last_losses=last)
    learned = rule.learn(state.client_weights, replies.clients, replies.loss, now)
    return replace(state, client_weights=cap(learned, replies.clients))


def damped(rule: ClientWeights, state: State, query: Query, update: Update, params: Tensor) -> Tensor:
    """Return the server's next parameters, with the step shortened if the rule for the client weights requires it."""
    if not rule.damps:
        return params
    lengths = update.deltas.double().square().sum(1)
    losses, weights = state.vectors[LOSSES][list(query.clients)], query.weights / query.weights.sum()
    share = rule.damping(weights, losses.to(weights), lengths.to(weights), query.scalars["learning_rate"])
    return update.start + share * (params - update.start)


def ended(rule: ClientWeights, state: State) -> State:
    """Return the state after a round, without its temporary vectors; its losses may be kept for the next round."""
    passing = (SNAPSHOT, LOSSES, LAST_LOSSES)
    kept = {name: value for name, value in state.vectors.items() if name not in passing}
    last = {LAST_LOSSES: state.vectors[LOSSES]} if rule.remembers_losses and LOSSES in state.vectors else {}
    return replace(state, round=state.round + 1, vectors={**kept, **last})
