"""Losses that clients report in a query of their own: before a round trains (q-FFL, Scaff-PD), or at a snapshot (DRFA).

What a round holds for its own end, and what the next one is to know, is in the state's vectors: a checkpoint has it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wafl.parts.client_weights import ClientWeights, LossQuery, Round
from wafl.parts.local_step import LocalStep
from wafl.parts.messages import Query, Replies, State, named, owned
from wafl.parts.update import Update

SNAPSHOT = "snapshot"
"""The vector at which clients report their loss, if the client weights are learned at a snapshot."""
Cap = Callable[[Tensor, Sequence[int]], Tensor]
"""A function of the weights of all clients, and of those that reported: the weights, none above its share."""
LOSSES, LAST_LOSSES = "losses", "last_losses"
"""What each client reported before this round trains, and before the last: NaN for those that did not report."""


def place_to_report(state: State, asked: LossQuery | None) -> Tensor | None:
    """The parameters at which clients report their losses now; None if it is not their turn, or nobody is asked."""
    if asked is None:
        return None
    if asked.step:
        return state.vectors.get(SNAPSHOT)
    return None if LOSSES in state.vectors else state.params


def after_losses(rule: ClientWeights, local: LocalStep, state: State, replies: Replies, now: Round, cap: Cap) -> State:
    """The state after clients have reported: a round that has a snapshot ends, another holds the losses to its end."""
    told = with_learned_weights(rule, state, replies, now, cap)
    if SNAPSHOT in state.vectors:
        return ended(rule, told)
    asked = list(replies.clients)
    vectors = local.tell_reports(owned("local", state.vectors), replies, told.client_weights[asked])
    return with_losses(replace(told, vectors={**state.vectors, **named("local", vectors)}), replies)


def with_losses(state: State, replies: Replies) -> State:
    """The state that holds the losses in these replies to the end of the round."""
    losses = torch.full_like(state.client_weights, torch.nan)
    losses[list(replies.clients)] = replies.loss.to(losses)
    return replace(state, vectors={**state.vectors, LOSSES: losses})


def with_learned_weights(rule: ClientWeights, state: State, replies: Replies, now: Round, cap: Cap) -> State:
    """The state with what the rule makes of the client weights and the losses in these replies."""
    last = state.vectors.get(LAST_LOSSES)
    if last is not None:  # clients that have joined since then did not report
        last = torch.cat([last, last.new_full((len(state.client_weights) - len(last),), torch.nan)])
    now = replace(now, last_losses=last)
    learned = rule.learn(state.client_weights, replies.clients, replies.loss, now)
    return replace(state, client_weights=cap(learned, replies.clients))


def held_losses(state: State) -> dict[str, Tensor]:
    """What clients reported before this round trains, under its name; empty if nobody did."""
    return {name: value for name, value in state.vectors.items() if name == LOSSES}


def damped(rule: ClientWeights, state: State, query: Query, update: Update, params: Tensor) -> Tensor:
    """Return the server's next parameters after the rule for the client weights has shortened the step, if it does."""
    if not rule.damps:
        return params
    lengths = update.deltas.double().square().sum(1)
    losses, weights = state.vectors[LOSSES][list(query.clients)], query.weights / query.weights.sum()
    share = rule.damping(weights, losses.to(weights), lengths.to(weights), query.scalars["learning_rate"])
    return update.start + share * (params - update.start)


def ended(rule: ClientWeights, state: State) -> State:
    """The state after a round, without what was held for its own end; its losses may be remembered for the next."""
    passing = (SNAPSHOT, LOSSES, LAST_LOSSES)
    kept = {name: value for name, value in state.vectors.items() if name not in passing}
    last = {LAST_LOSSES: state.vectors[LOSSES]} if rule.remembers_losses and LOSSES in state.vectors else {}
    return replace(state, round=state.round + 1, vectors={**kept, **last})
