"""Algorithm 1 of the paper: FedAvg on the surrogate loss.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data" (AISTATS
2017) is the case without an adversary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from wafl.algorithms.base import Query, Replies, Setting, State, mean_reply, weighted_mean
from wafl.core.random import Purpose, choose
from wafl.weights import ClientWeights


@dataclass(frozen=True)
class Averaging:
    """Sample a cohort, let each client train, take the mean of their models weighted by lambda."""

    setting: Setting
    client_weights: ClientWeights

    def init(self, params: Tensor) -> State:
        return self.setting.initial_state(params, self.client_weights)

    def ask(self, state: State) -> Query | None:
        schedule = self.setting.schedule
        if state.round == schedule.rounds:
            return None
        total = len(self.setting.num_examples)
        cohort = choose(schedule.seed, Purpose.COHORT, total, schedule.cohort or total, state.round)
        weights, scalars = state.client_weights[cohort], self.setting.query_scalars(state)
        return Query("train", state.round, schedule.seed, tuple(cohort), weights, state.params, scalars)

    def tell(self, state: State, query: Query, replies: Replies) -> State:
        assert replies.params is not None
        if not float(query.weights.sum()) > 0:  # a cohort of clients that do not count changes nothing
            return replace(state, round=state.round + 1)
        params = self.setting.server_step(state.params, weighted_mean(query.weights, replies.params))
        scalars = self.setting.next_scalars(state, params, mean_reply(query, replies.cost))
        return replace(state, round=state.round + 1, params=params, scalars=scalars)
