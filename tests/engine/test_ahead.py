"""Reading ahead: the right examples are announced, and no number depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import wafl
from wafl.algorithms import Query
from wafl.data.mapped import Mapped
from wafl.engine.ahead import Ahead, clients_after

METHODS = {
    "fixed": wafl.FedAvg(),
    "losses before": wafl.FedAvg(client_weights=wafl.weights.cvar(0.5)),
    "losses after": wafl.DRFA(),
    "learned with the updates": wafl.FedAvg(client_weights=wafl.weights.group_dro()),
}


@pytest.fixture
def clients(tmp_path: Path) -> wafl.Federation:
    draws = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", draws.normal(size=(36, 3)).astype(np.float32))
    x, y = np.load(tmp_path / "x.npy", mmap_mode="r"), draws.integers(0, 2, 36)
    return wafl.Federation.from_offsets(x, y, np.arange(0, 37, 4), test_fraction=0)


@pytest.mark.parametrize("name", METHODS)
def test_who_is_asked_next_is_known(name: str, clients: wafl.Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Query] = []
    foretold: list[tuple[int, ...]] = []

    def watching(self: Ahead, queries: Sequence[Query], runs: Sequence[int]) -> None:
        asked.extend(queries)
        foretold.append(clients_after(queries[0], self._specs[runs[0]], clients.num_clients))

    monkeypatch.setattr(Ahead, "expect", watching)
    wafl.fit(wafl.models.mlr(clients), clients, METHODS[name], rounds=4, cohort=3, local_epochs=1)
    known = [(told, after.clients) for told, after in zip(foretold, asked[1:], strict=False) if told]
    assert all(told == after for told, after in known)
    assert len(known) == {"fixed": 3, "losses before": 3, "losses after": 4, "learned with the updates": 0}[name]
    assert foretold[-1] == ()


def test_the_examples_of_the_next_cohort_are_announced(
    clients: wafl.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[set[int]] = []
    whole = Mapped.expect

    def watching(self: Mapped, begins: Tensor, sizes: Tensor) -> None:
        announced.append({int(row) // 4 for row in begins})
        whole(self, begins, sizes)

    monkeypatch.setattr(Mapped, "expect", watching)
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=3, cohort=3, local_epochs=1)
    cohorts = [set(record.cohort) for record in run.history]
    assert announced == [
        cohorts[1] - cohorts[0], cohorts[0], cohorts[2] - cohorts[1], cohorts[1], set(), cohorts[2],
    ]  # fmt: skip
    in_memory = wafl.Federation.from_offsets(clients.train.x, clients.train.y, clients.train.offsets, test_fraction=0)
    same = wafl.fit(wafl.models.mlr(in_memory), in_memory, wafl.FedAvg(), rounds=3, cohort=3, local_epochs=1)
    assert all(torch.equal(run.params[name], same.params[name]) for name in run.params)
