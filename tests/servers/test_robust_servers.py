"""Robust servers: each against a plain reference, and one liar among ten must not decide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import wafl
from tests.oracles import robust
from wafl import servers
from wafl.base.errors import TooFewRepliesError
from wafl.parts import lengths
from wafl.parts.messages import Replies, weighted_mean
from wafl.parts.schedule import Schedule
from wafl.servers import Aggregating, Update
from wafl.train.server import Algorithm

ROBUST: dict[str, Aggregating] = {
    "clipped": servers.clipped(),
    "median": servers.median(),
    "trimmed_mean": servers.trimmed_mean(0.25),
    "krum": servers.krum(1),
    "multi_krum": servers.multi_krum(1),
    "geometric_median": servers.geometric_median(),
    "bulyan": servers.bulyan(1),
}


def seen(start: Tensor, weights: Tensor, models: Tensor) -> Update:
    """An update of clients of which only models and weights are known."""
    each = torch.ones(len(models))
    return Update(start, models, weights, weights / weights.sum(), each, each.double(), each, each, len(models))


def aggregate(server: Aggregating, start: Any, rows: Any, weights: Any) -> list[float]:
    given = (torch.tensor(each, dtype=torch.float64) for each in (start, weights, rows))
    return server.aggregate(seen(*given)).tolist()


@pytest.fixture(params=[7, 8], ids=["odd", "even"])
def drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(lengths, "NUMBERS", 16)  # two columns at a time
    return robust.draw(request.param, request.param, 5)


def test_the_median_is_that_of_every_value_written_as_often_as_it_weighs(drawn: Any) -> None:
    start, rows, weights = drawn
    for each in (weights, [1] * len(rows), [2, 1, *[0] * (len(rows) - 3), 1]):
        assert aggregate(servers.median(), start, rows, each) == pytest.approx(robust.median(rows, each), abs=1e-12)


def test_the_trimmed_mean_leaves_out_the_same_weight_at_both_ends(drawn: Any) -> None:
    start, rows, weights = drawn
    for each in (weights, [1] * len(rows)):
        for cut in (0, 1, 3):
            result = aggregate(servers.trimmed_mean(cut / sum(each)), start, rows, each)
            assert result == pytest.approx(robust.trimmed_mean(rows, each, cut), abs=1e-12)


@pytest.mark.parametrize("liars", [0, 1, 2])
def test_krum_and_multi_krum_choose_the_models_nearest_to_most_others(liars: int, drawn: Any) -> None:
    start, rows, weights = drawn
    order = robust.krum_order(rows, liars)
    assert aggregate(servers.krum(liars), start, rows, weights) == pytest.approx(rows[order[0]], abs=1e-12)
    for kept in (None, 1, 4):
        best = order[: kept or len(rows) - liars - 2]
        expected = robust.mean([rows[i] for i in best], [weights[i] for i in best])
        assert aggregate(servers.multi_krum(liars, kept), start, rows, weights) == pytest.approx(expected, abs=1e-12)


def test_krum_does_not_choose_a_client_without_weight(drawn: Any) -> None:
    start, rows, weights = drawn
    best = robust.krum_order(rows, 1)[0]
    weights[best] = 0
    others = [i for i in range(len(rows)) if i != best]
    expected = rows[others[robust.krum_order([rows[i] for i in others], 1)[0]]]
    assert aggregate(servers.krum(1), start, rows, weights) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("liars", "clients"), [(0, 3), (0, 6), (1, 7), (1, 8), (2, 11), (2, 14)])
def test_bulyan_is_the_mean_near_the_median_of_the_models_that_krum_selects(
    liars: int, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lengths, "NUMBERS", 16)
    start, rows, weights = robust.draw(clients, clients, 5)
    result = aggregate(servers.bulyan(liars), start, rows, weights)
    assert result == pytest.approx(robust.bulyan(rows, liars), abs=1e-12)


def test_bulyan_needs_enough_replies_from_clients_with_a_weight() -> None:
    start, rows, _ = robust.draw(8, 8, 5)
    left = [*rows[:3], *rows[4:]]
    without = aggregate(servers.bulyan(1), start, rows, [1, 1, 1, 0, 1, 1, 1, 1])
    assert without == pytest.approx(robust.bulyan(left, 1), abs=1e-12)
    with pytest.raises(
        TooFewRepliesError, match="liars=1 needs at least 7 replies per round, and 6 arrived: lower `liars`"
    ):
        aggregate(servers.bulyan(1), start, rows, [1, 1, 1, 0, 0, 1, 1, 1])


def test_the_geometric_median_has_the_least_sum_of_weighted_distances(drawn: Any) -> None:
    start, rows, weights = drawn
    rows = [row[:3] for row in rows]
    result = aggregate(servers.geometric_median(), start[:3], rows, weights)
    assert result == pytest.approx(robust.geometric_median(rows, weights), abs=1e-5)
    held = [100 if i == 2 else 1 for i in range(len(rows))]
    assert aggregate(servers.geometric_median(), start[:3], rows, held) == pytest.approx(rows[2], abs=1e-4)


def test_clipping_shortens_what_is_longer_than_the_multiple_of_the_median(drawn: Any) -> None:
    start, rows, weights = drawn
    for multiple in (0.5, 1.0, 3.0, 1000.0):
        result = aggregate(servers.clipped(multiple), start, rows, weights)
        assert result == pytest.approx(robust.clipped(start, rows, weights, multiple), abs=1e-12)


def test_of_two_updates_the_longer_is_compared_with_the_shorter() -> None:
    start, rows = [0.0, 0.0], [[1.0, 0.0], [0.0, -90.0]]
    assert aggregate(servers.clipped(3.0), start, rows, [1, 1]) == [0.5, -1.5]
    assert aggregate(servers.clipped(3.0), start, [[0.0, 0.0], [0.0, -90.0]], [1, 1]) == [0.0, -45.0]


def test_an_update_that_overflows_float32_is_shortened() -> None:
    start, models = torch.zeros(2), torch.tensor([[1.0, 0.0], [1.0, 0.0], [1e30, 1e30]])
    result = servers.clipped(1.0).aggregate(seen(start, torch.ones(3), models))
    assert result.tolist() == pytest.approx([(2 + 0.5**0.5) / 3, 0.5**0.5 / 3])


def test_clipping_without_a_long_update_gives_the_bits_of_averaging() -> None:
    generator = torch.Generator().manual_seed(0)
    start, models = torch.randn(50, generator=generator), torch.randn(6, 50, generator=generator)
    weights = torch.rand(6, generator=generator, dtype=torch.float64)
    result = servers.clipped(5.0).aggregate(seen(start, weights, models))
    assert torch.equal(result, weighted_mean(weights, models))


@pytest.mark.parametrize("name", ROBUST)
def test_one_liar_among_ten_does_not_decide_and_models_that_agree_stay(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    honest = 1.0 + 0.1 * torch.randn(9, 20, generator=generator)
    models = torch.cat([honest, torch.full((1, 20), -1e6)])
    result = ROBUST[name].aggregate(seen(torch.zeros(20), torch.full((10,), 0.1), models))
    assert 0.5 < float(result.min()) < float(result.max()) < 1.5
    same = ROBUST[name].aggregate(seen(torch.zeros(20), torch.ones(10), torch.ones(10, 20)))
    torch.testing.assert_close(same, torch.ones(20))
    assert same.dtype == torch.float32


@pytest.mark.parametrize("name", ROBUST)
def test_a_robust_server_has_the_optimizer_that_it_is_given(name: str) -> None:
    """The optimizer is given the aggregate instead of the mean."""
    plain, adam = ROBUST[name], servers.adam(0.1)
    server: Any = type(plain)(**{**vars(plain), "optimizer": adam})
    start, models = torch.zeros(4), torch.arange(28.0).view(7, 4)
    update, memory = seen(start, torch.ones(7, dtype=torch.float64), models), server.initial_memory(start)
    result, kept = server.step(update, memory)
    expected, as_kept = adam.apply(start, plain.aggregate(update), memory)
    assert torch.equal(result, expected)
    assert kept.keys() == as_kept.keys() == {"mean", "square"}


def test_wrong_options_of_robust_servers_are_refused_with_a_remedy() -> None:
    for make, why in (
        (lambda: made(servers.krum(2), cohort=6), "liars=2 needs at least 7 clients per round, and there are 6: lower"),
        (lambda: made(servers.bulyan(2)), "liars=2 needs at least 11 clients per round, and there are 8: lower"),
        (
            lambda: made(servers.multi_krum(1, kept=8)),
            "kept=8 of 8 clients per round would include some of the liars=1",
        ),
    ):
        with pytest.raises(ValueError, match=why):
            make()
    made(servers.krum(2))


def made(server: Aggregating, **schedule: Any) -> Algorithm:
    method = wafl.FedAvg(server=server)
    return Algorithm(method, Schedule(rounds=1, local_steps=1, **schedule), [5] * 8, lambda _: 0.0)


# -- In training ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=8, iid=True, seed=0)


SCHEDULE: dict[str, Any] = {"rounds": 3, "local_steps": 2, "batch_size": 16, "learning_rate": 0.1}


def equal(one: wafl.Run, other: wafl.Run) -> bool:
    return all(torch.equal(value, other.params[name]) for name, value in one.params.items())


def test_options_of_the_server_and_of_its_optimizer_are_swept_together(clients: wafl.Federation) -> None:
    model = wafl.models.mlr(clients)
    method = wafl.FedAvg(server=servers.trimmed_mean(0.2, optimizer=servers.sgd(0.5)))
    assert method.with_options(trim=0.1, rate=0.7).server == servers.trimmed_mean(0.1, optimizer=servers.sgd(0.7))
    runs = wafl.sweep(model, clients, method, {"trim": [0.0, 0.3], "rate": [0.5, 1.0]}, **SCHEDULE)
    for run, (trim, rate) in zip(runs, [(0.0, 0.5), (0.0, 1.0), (0.3, 0.5), (0.3, 1.0)], strict=True):
        alone = wafl.FedAvg(server=servers.trimmed_mean(trim, optimizer=servers.sgd(rate)))
        assert equal(run, wafl.fit(model, clients, alone, **SCHEDULE))
    short = wafl.fit(model, clients, wafl.FedAvg(server=servers.median()), server_learning_rate=0.5, **SCHEDULE)
    optimizer = servers.median(optimizer=servers.sgd(0.5))
    assert equal(short, wafl.fit(model, clients, wafl.FedAvg(server=optimizer), **SCHEDULE))
    with pytest.raises(ValueError, match="server_learning_rate is shorthand for the optimizer"):
        wafl.fit(
            model,
            clients,
            wafl.FedAvg(server=servers.median(optimizer=servers.adam())),
            server_learning_rate=0.5,
            **SCHEDULE,
        )


def test_snapshots_of_drfa_are_aggregated_by_the_server_too() -> None:
    """A liar's snapshot would otherwise decide where everybody's losses are compared."""
    drfa = Algorithm(
        wafl.DRFA(server=servers.median()), Schedule(rounds=1, local_steps=2, cohort=5), [5] * 5, lambda _: 0.0
    )
    state = drfa.init(torch.zeros(2))
    query = drfa.ask(state)
    assert query is not None
    count = len(query.clients)
    models = torch.ones(count, 2)
    models[0] = -1e9
    vectors: dict[str, Tensor] = dict.fromkeys(query.wanted, models)
    state = drfa.tell(state, query, Replies(query.clients, torch.ones(count), torch.zeros(count), vectors))
    asked = drfa.ask(state)
    assert asked is not None
    assert asked.kind == "loss"
    assert asked.params.tolist() == [1.0, 1.0]
