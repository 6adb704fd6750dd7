"""What the server asks and makes of replies, whatever the method."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wafl
from wafl.objectives import Wasserstein
from wafl.parts.messages import Query, Replies, State, mean_reply, weighted_mean
from wafl.parts.schedule import Schedule
from wafl.train.checkpoint.checkpoint import Checkpoint
from wafl.train.server import Algorithm
from wafl.weights import Cohort, Learned, LossQuery, Round


def algorithm(method: wafl.Method, **schedule: Any) -> Algorithm:
    return Algorithm(method, Schedule(**{"rounds": 2, "local_steps": 3, **schedule}), [5, 5, 10], lambda params: 0.0)


def answer(query: Query, params: list[list[float]], losses: list[float]) -> Replies:
    vectors = {name: torch.tensor(params) for name in query.wanted}
    return Replies(query.clients, torch.tensor(losses), torch.zeros(len(losses)), vectors)


@dataclass(frozen=True)
class Weightless(Learned):
    """Its cohort never counts; with ``snapshot`` it learns only from losses at a snapshot."""

    snapshot: bool = False

    def draw(self, weights: torch.Tensor, round: Round) -> Cohort:
        return Cohort((0, 1), torch.zeros(2, dtype=torch.float64))

    def loss_query(self, round: Round) -> LossQuery | None:
        return LossQuery((0, 1, 2), 1) if self.snapshot else None


def after_one_round(rule: Weightless) -> tuple[State, State]:
    learning = algorithm(wafl.FedAvg(client_weights=rule))
    before = learning.init(torch.zeros(2))
    query = learning.ask(before)
    assert query is not None
    return before, learning.tell(before, query, answer(query, [[1.0, 1.0]] * 2, [3.0, 0.0]))


@pytest.mark.parametrize("snapshot", [False, True])
def test_when_no_client_counts_the_round_ends_and_the_model_stays(snapshot: bool) -> None:
    before, after = after_one_round(Weightless(snapshot=snapshot))
    assert after.round == 1
    assert torch.equal(after.params, before.params)


def test_weights_never_learn_from_losses_at_another_place_than_they_asked_for() -> None:
    """Without a client that counts there is no snapshot, and the losses at the start are not its losses."""
    before, after = after_one_round(Weightless(snapshot=True))
    assert torch.equal(after.client_weights, before.client_weights)
    before, after = after_one_round(Weightless(snapshot=False))
    assert not torch.equal(after.client_weights, before.client_weights)


@pytest.mark.parametrize("gamma", [1, 1.0, np.float32(1.0), np.int64(1)], ids=["int", "float", "float32", "int64"])
def test_a_gamma_of_any_type_of_number_is_trained_recorded_and_kept_as_a_float(gamma: Any, tmp_path: Path) -> None:
    """A checkpoint writes floats to the last bit, and could not write an integer so."""
    x, y = torch.arange(8.0)[:, None] / 8, torch.arange(8) % 2
    clients = wafl.Federation.from_arrays([(x[:4], y[:4]), (x[4:], y[4:])], test_fraction=0)
    runs = [
        wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=value), rounds=2, local_steps=1, **options)
        for value, options in ((1.0, {}), (gamma, {"checkpoint": Checkpoint(tmp_path / "checkpoint")}))
    ]
    assert torch.equal(runs[0].params["1.weight"], runs[1].params["1.weight"])
    assert runs[1].history.column("gamma") == [1.0, 1.0]
    assert all(type(value) is float for value in runs[1].history.column("gamma"))
    assert wafl.load_run(runs[1].save(tmp_path / "run")).settings["method"]["objective"]["gamma"] == 1.0


@dataclass(frozen=True)
class Clashing(Wasserstein):
    def scalars(self) -> dict[str, float]:
        return {"gamma": 1.0, "mu": 0.0}


def test_an_objective_with_a_scalar_of_the_local_step_is_refused() -> None:
    """Clients get all scalars under their plain names, so one would silently replace the other."""
    algorithm(wafl.Method("own", Clashing(), wafl.weights.uniform()))
    with pytest.raises(ValueError, match="the objective's scalar 'mu' is also one of the local step or the schedule"):
        algorithm(wafl.Method("own", Clashing(), wafl.weights.uniform(), local=wafl.local.prox(0.1)))


def test_means_are_relative_to_the_weights_of_the_clients_that_count() -> None:
    weights = torch.tensor([1.0, 3.0], dtype=torch.float64)
    assert weighted_mean(weights, torch.tensor([[0.0, 4.0], [8.0, 0.0]])).tolist() == [6.0, 1.0]
    query = Query("train", 0, 0, (0, 1), weights, torch.zeros(2), {})
    assert mean_reply(query, torch.tensor([4.0, 8.0])) == 7.0
    zero = Query("train", 0, 0, (0, 1), 0 * weights, torch.zeros(2), {})
    assert mean_reply(zero, torch.tensor([4.0, 8.0])) == 6.0, "equally, if none counts"
