"""AFL: the worst mixture of the clients, one step at a time.

Mohri, Sivek and Suresh, "Agnostic federated learning" (ICML 2019), stochastic AFL: every client takes
one step from the same parameters and reports its loss there; the model descends the weighted loss, the
weights ascend it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from wafl.algorithms.base import Query, Replies, Setting, State, mean_reply, weighted_mean
from wafl.weights import Learned, project_to_simplex


@dataclass(frozen=True)
class Agnostic:
    """``params <- params - rate sum_i lambda_i g_i``, ``lambda <- projection(lambda + step loss)``."""

    setting: Setting
    client_weights: Learned

    def init(self, params: Tensor) -> State:
        return self.setting.initial_state(params, self.client_weights)

    def ask(self, state: State) -> Query | None:
        schedule = self.setting.schedule
        if state.round == schedule.rounds:
            return None
        everyone = tuple(range(len(self.setting.num_examples)))
        scalars = self.setting.query_scalars(state)
        return Query("train", state.round, schedule.seed, everyone, state.client_weights, state.params, scalars)

    def tell(self, state: State, query: Query, replies: Replies) -> State:
        assert replies.params is not None
        params = state.params
        if float(query.weights.sum()) > 0:  # else nobody who counts has replied
            params = self.setting.server_step(params, weighted_mean(query.weights, replies.params))
        climbed = state.client_weights.clone()
        climbed[list(replies.clients)] += self.client_weights.step(state.round) * replies.loss.to(climbed)
        scalars = self.setting.next_scalars(state, params, mean_reply(query, replies.cost))
        return replace(
            state, round=state.round + 1, params=params, client_weights=project_to_simplex(climbed), scalars=scalars
        )
