"""DRFA: the worst mixture of the clients, with local steps.

Deng, Kamani and Mahdavi, "Distributionally robust federated averaging" (NeurIPS 2020). A round asks
twice: a cohort drawn by lambda trains and keeps a snapshot at a common random step; then a uniform
cohort reports its loss at the mean of the snapshots.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wafl.algorithms.base import Query, Replies, Setting, State, mean_reply, weighted_mean
from wafl.core.random import Key, Purpose, bits, choose, uniform
from wafl.weights import Learned, project_to_simplex


@dataclass(frozen=True)
class Snapshot:
    """``lambda <- projection(lambda + K step v)``, v the snapshot's losses scaled by m / |U|."""

    setting: Setting
    client_weights: Learned

    def init(self, params: Tensor) -> State:
        return self.setting.initial_state(params, self.client_weights)

    def ask(self, state: State) -> Query | None:
        schedule, total = self.setting.schedule, len(self.setting.num_examples)
        scalars = self.setting.query_scalars(state)
        cohort = schedule.cohort or total
        if state.snapshot is not None:
            asked = choose(schedule.seed, Purpose.LOSS_COHORT, total, cohort, state.round)
            weights = torch.ones(cohort, dtype=torch.float64)
            return Query("loss", state.round, schedule.seed, tuple(asked), weights, state.snapshot, scalars)
        if state.round == schedule.rounds:
            return None
        times_drawn = sorted(self._draw_cohort(state, cohort).items())
        drawn = tuple(client for client, _ in times_drawn)
        weights = torch.tensor([float(times) for _, times in times_drawn], dtype=torch.float64)
        step = int(bits(Key.of(schedule.seed, state.round), Purpose.SNAPSHOT, 1)) % self._local_steps() + 1
        return Query("train", state.round, schedule.seed, drawn, weights, state.params, scalars, snapshot_step=step)

    def tell(self, state: State, query: Query, replies: Replies) -> State:
        if query.kind == "loss":
            return self._tell_losses(state, replies)
        assert replies.params is not None
        assert replies.snapshots is not None
        params = self.setting.server_step(state.params, weighted_mean(query.weights, replies.params))
        scalars = self.setting.next_scalars(state, params, mean_reply(query, replies.cost))
        return replace(state, params=params, snapshot=weighted_mean(query.weights, replies.snapshots), scalars=scalars)

    def _tell_losses(self, state: State, replies: Replies) -> State:
        climbed = state.client_weights.clone()
        scale = len(climbed) / len(replies.clients)
        step = self._local_steps() * self.client_weights.step(state.round)
        climbed[list(replies.clients)] += step * scale * replies.loss.to(climbed)
        return replace(state, round=state.round + 1, client_weights=project_to_simplex(climbed), snapshot=None)

    def _draw_cohort(self, state: State, size: int) -> Counter[int]:
        """With replacement, by lambda: how often each client was drawn. One who was drawn twice counts twice."""
        draws = uniform(Key.of(self.setting.schedule.seed, state.round), Purpose.COHORT, size)
        drawn = torch.searchsorted(state.client_weights.cumsum(0), draws, right=True)
        return Counter(drawn.clamp_max(len(state.client_weights) - 1).tolist())

    def _local_steps(self) -> int:
        """K: the steps of the client that takes most. One who takes fewer gives its last step as the snapshot."""
        return max(self.setting.schedule.local_work.num_steps(self.setting.num_examples))
