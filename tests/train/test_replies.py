"""The server's part of a round: what a server is given, and what becomes of its step and of statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import wafl
from wafl.parts.messages import Query, Replies, State
from wafl.parts.schedule import Schedule
from wafl.servers import Server, Update
from wafl.train.server import Algorithm

SIZES = [4, 9, 2, 5]
MODELS = torch.tensor([[1.0, 2.0, 30.0], [3.0, -1.0, 50.0], [0.0, 4.0, 10.0], [2.0, 2.0, 20.0]])
"""The last number of each client is a statistic."""


@dataclass(frozen=True)
class Probe(Server):
    """Remembers what it is given, and moves the server's model by 1."""

    seen: list[Update] = field(default_factory=list)
    memories: list[Mapping[str, Tensor]] = field(default_factory=list)

    def initial_memory(self, params: Tensor) -> dict[str, Tensor]:
        return {"last": params.clone()}

    def step(self, update: Update, memory: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        self.seen.append(update)
        self.memories.append(memory)
        return update.start + 1.0, memory


def algorithm(method: wafl.Method, **schedule: Any) -> Algorithm:
    timing = {"rounds": 2, "local_epochs": 2, "batch_size": 2, **schedule}
    return Algorithm(method, Schedule(**timing), SIZES, lambda params: 0.0, num_statistics=1)


def asked(learning: Algorithm, state: State) -> tuple[Query, Replies]:
    """The first query, and replies in which every vector is the client's row of MODELS."""
    query = learning.ask(state)
    assert query is not None
    clients = list(query.clients)
    vectors = {name: MODELS[clients] if name == "params" else 2 * MODELS[clients] for name in query.wanted}
    losses = torch.tensor([0.1, 0.2, 0.3, 0.4])[clients]
    return query, Replies(query.clients, losses, 10 * losses, vectors)


def test_a_server_gets_all_that_is_known_of_the_clients_but_no_statistics() -> None:
    probe = Probe()
    learning = algorithm(wafl.SCAFFOLD(server=probe), cohort=3)
    state = learning.init(torch.tensor([0.5, 0.5, 7.0]))
    query, replies = asked(learning, state)
    after = learning.tell(state, query, replies)
    (update,), clients = probe.seen, list(query.clients)
    assert update.start.tolist() == [0.5, 0.5]
    assert torch.equal(update.params, MODELS[clients, :2])
    assert torch.equal(update.deltas, MODELS[clients, :2] - 0.5)
    assert torch.equal(update.vectors["control"], 2 * MODELS[clients, :2])
    assert update.sizes.tolist() == [SIZES[client] for client in clients]
    assert update.steps.tolist() == [2 * -(-SIZES[client] // 2) for client in clients]
    assert update.shares.tolist() == pytest.approx([SIZES[client] / 20 for client in clients])
    assert (update.num_clients, len(clients)) == (4, 3)
    assert torch.equal(update.losses, replies.loss)
    assert torch.equal(update.costs, replies.cost)
    shares = torch.tensor([SIZES[client] for client in clients]) / sum(SIZES[client] for client in clients)
    torch.testing.assert_close(update.mean(), shares @ MODELS[clients, :2])
    torch.testing.assert_close(update.mean(update.steps), shares @ update.steps)
    assert after.params[:2].tolist() == [1.5, 1.5]
    torch.testing.assert_close(after.params[2], shares @ MODELS[clients, 2])


def test_memory_is_as_long_as_what_the_server_sees_even_if_a_checkpoint_has_statistics_in_it() -> None:
    probe = Probe()
    learning = algorithm(wafl.FedAvg(server=probe))
    state = learning.init(torch.zeros(3))
    assert state.vectors["server.last"].shape == (2,)
    learning.tell(state, *asked(learning, state))
    learning.tell(replace(state, vectors={"server.last": torch.zeros(3)}), *asked(learning, state))
    assert [memory["last"].shape for memory in probe.memories] == [(2,), (2,)]


def test_a_snapshot_is_aggregated_with_the_steps_up_to_it() -> None:
    """After equal numbers of steps of every client, normalized averaging is plain averaging."""
    learning = algorithm(wafl.DRFA(server=wafl.servers.normalized()), cohort=4)
    state = replace(learning.init(torch.zeros(3)), client_weights=torch.full((4,), 0.25, dtype=torch.float64))
    query, replies = asked(learning, state)
    early = replace(query, iterates={"snapshot": 1})
    after = learning.tell(state, early, replies)
    expected = query.weights.float() / query.weights.sum() @ (2 * MODELS[list(query.clients)])
    torch.testing.assert_close(after.vectors["snapshot"], expected)
    torch.testing.assert_close(after.params[2], expected[2] / 2)
    assert float((after.params[:2] - expected[:2] / 2).abs().max()) > 0.01


@pytest.mark.parametrize("everyone", [True, False])
def test_the_memory_of_feddyn_is_the_weighted_sum_of_what_clients_keep(everyone: bool) -> None:
    """With equal weights the share of a cohort is its part of all clients, as in the paper."""
    learning = algorithm(wafl.FedDyn(client_weights=wafl.weights.uniform()), cohort=4 if everyone else 2)
    state = learning.init(torch.zeros(3))
    query, replies = asked(learning, state)
    after = learning.tell(state, query, replies)
    moved = replies.params[:, :2]
    torch.testing.assert_close(after.vectors["server.h"], -moved.sum(0) / 4)
    torch.testing.assert_close(after.params[:2], moved.mean(0) + moved.sum(0) / 4)
