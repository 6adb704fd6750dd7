"""How far clients are believed: what is usual has the same bits, and no client counts for much more."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median_low
from typing import Any

import pytest
import torch

import wafl
from wafl.objectives.ball.client_cost_matrix import class_means, cost_matrix_of_means
from wafl.parts.messages import Query, Replies, State
from wafl.parts.schedule import LocalWork
from wafl.train.replies import update_of
from wafl.train.trust.admission import Admitted, Tolerance, admit, split
from wafl.train.trust.trust import Shares, Trust, per_node

BELIEVED = Trust()
FLOWER = Trust(3.0, "double")


def weights(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def capped(*values: float, share: Any = "double", **options: Any) -> list[float]:
    given = weights(*values)
    limited = Shares.of(given, share, **options).capped(given)
    assert float(limited.sum()) == pytest.approx(float(given.sum()))
    return (limited / limited.sum()).tolist()


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        ((97, 1, 1, 1), {}, [1 / 2, 1 / 6, 1 / 6, 1 / 6]),
        ((8, 1, 1), {}, [1 / 2, 1 / 4, 1 / 4]),
        ((1e300, 1, 1, 1), {}, [1 / 2, 1 / 6, 1 / 6, 1 / 6]),
        ((1, 0, 0, 0), {}, [1 / 2, 1 / 6, 1 / 6, 1 / 6]),
        ((50, 20, 5, 5, 10), {}, [0.4, 0.3, 0.075, 0.075, 0.15]),
        ((60, 30, 5, 5), {"share": 0.4}, [0.4, 0.4, 0.1, 0.1]),
        ((5, 1, 1, 1), {"share": 0.1}, [1 / 4] * 4),
        ((2, 2, 2, 2, 1, 1), {"nodes": [0, 0, 0, 0, 1, 2]}, [1 / 8] * 4 + [1 / 4] * 2),
        ((97, 1, 1, 1), {"free": [0]}, [0.97, 0.01, 0.01, 0.01]),
    ],
)
def test_what_exceeds_a_share_goes_to_the_others_in_proportion(
    given: tuple[float, ...], options: dict[str, Any], expected: list[float]
) -> None:
    assert capped(*given, **options) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "share"), [((3, 2, 2, 2, 1), "double"), ((99, 1), "double"), ((99, 1, 1), 1.0), ((1, 1, 1), 0.2)]
)
def test_weights_within_their_shares_have_the_same_bits(given: tuple[float, ...], share: Any) -> None:
    limited = weights(*given)
    again = Shares.of(limited, share).capped(limited)
    assert torch.equal(again / again.sum(), limited / limited.sum())
    held = weights(97, 1, 1, 1, 1)
    once = Shares.of(held, "double").capped(held)
    assert torch.equal(Shares.of(once, "double").capped(once), once), "what was capped is not capped again"


def answer(
    models: list[list[float]], given: torch.Tensor, nodes: tuple[int, ...] = (), kind: Any = "train", **numbers: Any
) -> Admitted:
    clients = tuple(range(len(models)))
    query = Query(kind, 0, 0, clients, given, torch.zeros(2), {}, nodes=nodes)
    loss, cost = (torch.tensor(numbers.get(name, [1.0] * len(models))) for name in ("loss", "cost"))
    return Admitted(query, Replies(clients, loss, cost, {"params": torch.tensor(models)} if kind == "train" else {}))


def test_who_counts_twice_goes_half_as_far() -> None:
    """Three times the median for an equal share, 1.5 times for twice that: no client moves the mean further."""
    given = answer([[100.0, 0.0], [0.0, 100.0], *[[1.0, 0.0]] * 8], weights(1000, *[1] * 9))
    believed = FLOWER.bound(given, decides=False, aimed=None)
    assert believed.replies.params[:2].tolist() == [[1.5, 0.0], [0.0, 3.0]]
    assert believed.shortened == pytest.approx({0: 0.015, 1: 0.03})
    assert believed.limited == ((0, "a weight held at 0.2"),)
    sized = Trust(3.0, "double", frozenset({0})).bound(given, decides=False, aimed=None)
    assert sized.replies.params[0].tolist() == [3.0, 0.0], "a size that is known is no claim"
    assert torch.equal(sized.query.weights, given.query.weights)


def test_losses_and_costs_count_for_three_times_the_median_where_they_decide_something() -> None:
    given = answer([[1.0, 0.0]] * 4, weights(1, 1, 1, 1), loss=[99.0, 2.0, 2.0, -99.0], cost=[1e3, 2.0, 1.0, 2.0])
    believed = FLOWER.bound(given, decides=True, aimed=0.5)
    assert believed.replies.loss.tolist() == [6.0, 2.0, 2.0, -6.0]
    assert believed.replies.cost.tolist() == [6.0, 2.0, 1.0, 2.0]
    assert (0, "a cost of 1e+03, counted as 6") in believed.limited
    assert torch.equal(FLOWER.bound(given, decides=False, aimed=None).replies.loss, given.replies.loss)
    still = answer([[1.0, 0.0]] * 3, weights(1, 1, 1), cost=[9.0, 0.0, 0.0])
    assert FLOWER.bound(still, decides=False, aimed=0.5).replies.cost.tolist() == [1.5, 0.0, 0.0], "the radius is known"
    few = answer([[1.0, 0.0]] * 2, weights(1, 1), loss=[99.0, 1.0], kind="loss")
    assert FLOWER.bound(few, decides=True, aimed=None).replies.loss.tolist() == [99.0, 1.0]
    assert BELIEVED.bound(given, decides=True, aimed=0.5) is given


def test_a_loss_may_be_limited_by_the_median_of_the_other_nodes() -> None:
    """Against a plain reference: for each client, the lower median over the nodes that are not its own."""
    trust, generator = replace(FLOWER, clip_loss=1.5), torch.Generator().manual_seed(0)
    for nodes in ((), (0, 0, 0, 1, 2), (3, 1, 3, 1, 2), (0, 1, 2, 3, 4)):
        for _ in range(20):
            loss = [round(value, 2) for value in torch.rand(5, generator=generator).mul(4.0).tolist()]
            given = answer([[1.0, 0.0]] * 5, weights(1, 1, 1, 1, 1), nodes, loss=loss)
            homes, limits = nodes or tuple(range(5)), list[float]()
            for home in homes:
                of_node = {other: [loss[i] for i in range(5) if homes[i] == other] for other in set(homes) - {home}}
                limits.append(1.5 * median_low([median_low(values) for values in of_node.values()]))
            expected = [min(claim, most) for claim, most in zip(loss, limits, strict=True)]
            assert trust.bound(given, decides=True, aimed=None).replies.loss.tolist() == pytest.approx(expected)
            assert torch.equal(trust.bound(given, decides=False, aimed=None).replies.loss, given.replies.loss)


def test_the_limit_on_losses_has_no_floor_and_changes_no_loss_below_it() -> None:
    alone = Trust(clip_loss=1.5)
    given = answer([[1.0, 0.0]] * 4, weights(1, 1, 1, 1), loss=[9.0, 0.2, 0.3, 0.2])
    believed = alone.bound(given, decides=True, aimed=None)
    assert believed.replies.loss.tolist() == pytest.approx([0.3, 0.2, 0.3, 0.2])
    assert believed.limited == ((0, "a loss of 9, counted as 0.3"),)
    honest = answer([[1.0, 0.0]] * 4, weights(1, 1, 1, 1), loss=[0.2, 0.25, 0.3, 0.2])
    assert torch.equal(alone.bound(honest, decides=True, aimed=None).replies.loss, honest.replies.loss)
    few = answer([[1.0, 0.0]] * 2, weights(1, 1), loss=[99.0, 1.0], kind="loss")
    assert torch.equal(alone.bound(few, decides=True, aimed=None).replies.loss, few.replies.loss)


def test_clients_of_one_node_have_one_vote_on_what_is_usual() -> None:
    """Three tiny updates of one node would have the honest ones left out, or shortened."""
    tiny, nodes = [[1e-6, 0.0]] * 3, (0, 0, 0, 1, 2, 3)
    given = answer([*tiny, *[[1.0, 0.0]] * 3], weights(1, 1, 1, 1, 1, 1), nodes)
    assert admit(given.query, split(given.replies), Tolerance()).excluded == {}
    alone = answer([*tiny, *[[1.0, 0.0]] * 3], weights(1, 1, 1, 1, 1, 1))
    assert list(admit(alone.query, split(alone.replies), Tolerance()).excluded) == [3, 4, 5]
    assert FLOWER.bound(given, decides=False, aimed=None).shortened == {}


def test_a_server_that_looks_at_models_sees_one_per_node() -> None:
    given = answer(
        [[9.0, 0.0], [9.0, 0.0], [9.0, 3.0], [1.0, 0.0], [2.0, 0.0]], weights(1, 1, 2, 1, 1), (0, 0, 0, 1, 2)
    )
    state = State(0, given.query.params, weights(1, 1, 2, 1, 1) / 10)
    whole = update_of(state, given.query, given.replies, LocalWork(None, 1, 2), [2, 2, 6, 4, 1])
    seen = per_node(whole, given.query.nodes)
    assert seen.params.tolist() == [[9.0, 1.5], [1.0, 0.0], [2.0, 0.0]]
    assert seen.weights.tolist() == [4.0, 1.0, 1.0]
    assert seen.shares.tolist() == pytest.approx([0.4, 0.1, 0.1])
    assert (whole.steps.tolist(), seen.steps.tolist()) == ([1.0, 1.0, 3.0, 2.0, 1.0], [2.0, 2.0, 1.0])
    assert seen.sizes.tolist() == [10.0, 4.0, 1.0]
    assert seen.num_clients == 5
    assert torch.equal(per_node(whole, ()).params, whole.params)
    assert wafl.servers.median().aggregate(replace(seen, weights=torch.ones(3)))[0] == 2.0


def test_the_steps_of_the_largest_client_are_believed_up_to_three_times_the_usual_size() -> None:
    assert Trust(3.0).largest([100, 90, 10**6]) == 300
    assert Trust(3.0, declared=frozenset({2})).largest([100, 90, 10**6]) == 10**6
    assert Trust(3.0).largest([1, 10**6]) == 10**6 == BELIEVED.largest([1, 1, 10**6])
    assert math.inf == BELIEVED.clip


@pytest.mark.parametrize(("total", "size"), [(1e6, 10), (1e6, 10**6), (90.0, 10**6)])
def test_a_spread_that_one_client_claims_moves_the_mean_of_all_a_little(total: float, size: int) -> None:
    """At three times the usual mean, 9, and twice an equal share, it makes 13.2 of 9 at most."""
    sums, sizes = [90.0] * 9, [10] * 9
    squares, counts = FLOWER.of_examples([*sums, total], [*sizes, size])
    assert 0.8 * 9.0 <= sum(squares) / sum(counts) <= 0.8 * 9.0 + 0.2 * 27.0 + 1e-9
    assert [total / count for total, count in zip(squares[:9], counts[:9], strict=True)] == pytest.approx([9.0] * 9)
    assert FLOWER.of_examples([*sums, 200.0], [*sizes, 10]) == ([*sums, 200.0], [*sizes, 10]), "within what is usual"
    assert BELIEVED.of_examples([*sums, total], [*sizes, size]) == ([*sums, total], [*sizes, size])
    together = Trust(3.0, "double", nodes=(0, 0, 0, 1, 2)).of_examples([1e6, 1e6, 1e6, 90.0, 90.0], [10] * 5)
    means = [total / count for total, count in zip(*together, strict=True)]
    assert means == pytest.approx([27.0, 27.0, 27.0, 9.0, 9.0]), "a node has one vote"


def test_class_means_that_one_client_claims_do_not_decide_the_shape() -> None:
    """Ten clients differ along the first axis; one of them claims a million along the second."""
    x = torch.zeros(60, 3, dtype=torch.float64)
    x[:, 0] = torch.arange(10).repeat_interleave(6) - 4.5
    x[:, 2] = 0.1 * torch.arange(60).sin()
    y, owner = torch.arange(60) % 2, torch.arange(10).repeat_interleave(6)
    honest = class_means(x, y, owner)
    assert torch.equal(cost_matrix_of_means(FLOWER.of_classes(honest)).matrix, cost_matrix_of_means(honest).matrix)
    lie = honest.means.clone()
    lie[honest.clients == 7, :, 1] = 1e6
    lying = replace(honest, means=lie)
    assert BELIEVED.of_classes(lying) is lying
    before, believed = (cost_matrix_of_means(each).matrix for each in (lying, FLOWER.of_classes(lying)))
    assert before[1, 1] > 1e3 * believed[1, 1]
    assert believed[0, 0] > believed[1, 1]
    sized = replace(honest, counts=torch.where(honest.clients == 7, 10**9, honest.counts))
    assert FLOWER.of_classes(sized).counts[honest.clients == 7].sum() == pytest.approx(0.2 * sized.counts.sum())


def test_a_training_with_a_limit_on_losses_has_the_same_bits_until_a_loss_is_limited() -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=3, seed=0)

    def trained(tolerance: Tolerance | None) -> wafl.Run:
        options: dict[str, Any] = {"rounds": 2, "local_steps": 1, "batch_size": 8, "learning_rate": 0.1}
        return wafl.fit(wafl.models.mlr(clients), clients, wafl.AFL(), tolerance=tolerance, **options)

    plain, far, near = trained(None), trained(Tolerance(clip_loss=1e3)), trained(Tolerance(clip_loss=1.0))
    assert all(torch.equal(values, far.params[name]) for name, values in plain.params.items())
    assert torch.equal(plain.client_weights, far.client_weights)
    assert not any(record.limited for record in far.history)
    assert any(record.limited for record in near.history)
    assert near.client_weights.max() < plain.client_weights.max(), "two clients share what the highest loss would have"
