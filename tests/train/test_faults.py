"""Clients that fail: who counts in a round, what becomes of it with the others' replies, and when they are too few."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import wafl
from tests.oracles import reference
from wafl.base.errors import TooFewRepliesError
from wafl.callbacks import Moment
from wafl.parts.messages import Query, Reply
from wafl.results.history import History, Record
from wafl.train.checkpoint.checkpoint import Checkpoint, read_progress
from wafl.train.trust.admission import Admitted, Tolerance, admit
from wafl.train.trust.caps import Caps
from wafl.train.trust.faults import Faults
from wafl.train.trust.trust import Trust

FAULT = 13
"""The purpose of the draws, part of their key."""
RATES = {"dropout": 0.2, "late": 0.1, "nan": 0.05, "infinity": 0.08, "wrong_shape": 0.12}
SIZES = (3, 8, 6, 5, 10, 2, 7, 9)
REASONS = {
    "dropout": "dropped out",
    "late": "late",
    "nan": "update with NaN or infinity",
    "infinity": "update with NaN or infinity",
    "wrong_shape": "update of shape (8,), asked for (9,)",
}
ALL: dict[str, Any] = {"rounds": 4, "local_steps": 1, "batch_size": 4, "learning_rate": 0.3}
SOME: dict[str, Any] = {**ALL, "cohort": 5, "local_steps": 3}


def pairs() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    centers = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    labels = [(torch.arange(size) + client) % 3 for client, size in enumerate(SIZES)]
    return [(centers[y] + torch.randn(len(y), 2, generator=generator, dtype=torch.float64), y) for y in labels]


CLIENTS = wafl.Federation.from_arrays(pairs(), test_fraction=0)


def fit(
    method: wafl.Method, schedule: dict[str, Any] = SOME, clients: wafl.Federation = CLIENTS, **changes: Any
) -> wafl.Run:
    return wafl.fit(wafl.models.mlr(clients).double(), clients, method, **{**schedule, **changes})


def question(clients: range | list[int], *, round: int = 0, seed: int = 0, kind: Any = "train") -> Query:
    return Query(kind, round, seed, tuple(clients), torch.ones(len(clients)), torch.zeros(3), {})


def fate(faults: Faults, seed: int, round: int, client: int, attempt: int = 0, kind: str = "train") -> str | None:
    """By hand: one uniform number of 24 bits per client, and the interval of [0, 1) that it falls into."""
    both = reference.draw(faults.seed, FAULT, 0, seed, 0, 1)[0]
    number = reference.draw(both, FAULT, round, client, 2 * attempt + (kind == "loss"), 1)[0] // 256 / 2**24
    edge = 0.0
    for name, rate in faults.rates().items():
        edge += rate
        if number < edge:
            return name
    return None


def assert_same(one: wafl.Run, other: wafl.Run) -> None:
    """The same draws exactly, the same numbers up to the rounding of sums taken in another order."""
    for column in ("cohort", "excluded", "attempts"):
        assert one.history.column(column) == other.history.column(column)
    for name, value in one.params.items():
        torch.testing.assert_close(value, other.params[name], rtol=0, atol=1e-12)
    torch.testing.assert_close(one.client_weights, other.client_weights, rtol=0, atol=1e-12)
    assert one.history.column("loss") == pytest.approx(other.history.column("loss"), abs=1e-12)


# -- Draws ----------------------------------------------------------------------------------------------------


def test_draws_are_philox_of_seed_round_client_and_attempt() -> None:
    faults = Faults(**RATES, seed=9)
    for t, attempt, kind in ((0, 0, "train"), (5, 2, "train"), (5, 0, "loss")):
        by_hand = {client: fate(faults, 11, t, client, attempt, kind) for client in range(60)}
        fates = faults.befall(question(range(60), round=t, seed=11, kind=kind), attempt)
        assert fates == {client: name for client, name in by_hand.items() if name is not None}


def test_rates_that_sum_to_more_than_1_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the rates of the faults sum to 1\.1: they must not exceed 1"):
        Faults(dropout=0.6, wrong_shape=0.5)
    assert Faults(dropout=0.7, late=0.1, nan=0.2).dropout == 0.7, "a sum of 1, up to rounding"


# -- Records --------------------------------------------------------------------------------------------------


def test_the_record_says_who_was_left_out_and_why_as_drawn() -> None:
    faults = Faults(**RATES, seed=4)
    run = fit(wafl.FedAvg(), rounds=12, faults=faults, tolerance=Tolerance(min_replies=0.0), seed=9)
    plain = fit(wafl.FedAvg(), rounds=12, seed=9)
    assert run.history.column("cohort") == plain.history.column("cohort"), "who is asked does not change"
    seen: set[str] = set()
    for record in run.history:
        assert record.attempts == 1
        fates = {client: fate(faults, 9, record.round, client) for client in record.cohort}
        out = {client: name for client, name in fates.items() if name is not None}
        assert dict(record.excluded) == {client: REASONS[name] for client, name in out.items()}
        assert record.participants == tuple(client for client in record.cohort if client not in out)
        assert record.numbers()["replies"] == len(record.participants)
        seen |= set(out.values())
    assert seen == set(RATES), "each fault came at least once"


def test_a_record_with_exclusions_survives_json() -> None:
    record = Record(3, 0.5, 0.1, (1, 4, 6), excluded=((4, "late"), (6, "loss: dropped out")), attempts=2)
    (again,) = History.from_json(json.loads(json.dumps(History([record]).to_json())))
    assert again == record
    assert again.participants == (1, 6), "a client counts if it trained, even if its loss did not arrive"


def test_rates_of_zero_change_no_bit() -> None:
    for method, schedule in ((wafl.FedAvg(), SOME), (wafl.AFL(), ALL), (wafl.DRFA(), SOME), (wafl.WAFL(), SOME)):
        plain = fit(method, schedule)
        for patience in (
            {"faults": Faults()},
            {"tolerance": Tolerance()},
            {"faults": Faults(), "tolerance": Tolerance()},
        ):
            run = fit(method, schedule, **patience)
            assert all(torch.equal(value, run.params[name]) for name, value in plain.params.items())
            assert torch.equal(run.client_weights, plain.client_weights)
            assert run.history.column("excluded") == [()] * 4


@pytest.mark.parametrize(
    ("method", "schedule", "grid"),
    [
        (wafl.WAFL(), SOME, {"gamma": [1.0, 5.0], "seed": [0, 3]}),
        (wafl.FedRobust(), SOME, {"penalty": [0.5, 2.0], "seed": [0, 3]}),
        (wafl.AFL(), ALL, {"weights_step": [0.1, 0.3], "seed": [0, 3]}),
        (wafl.DRFA(), SOME, {"weights_step": [0.01, 0.05], "seed": [0, 3]}),
        (wafl.FedAvg(), SOME, {"cohort": [3, 8], "seed": [0, 3]}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_each_run_of_a_sweep_with_faults_equals_the_same_run_alone(
    method: wafl.Method, schedule: dict[str, Any], grid: dict[str, list[Any]]
) -> None:
    """Some runs repeat a round while others do not."""
    patience = {"faults": Faults(dropout=0.3, nan=0.2), "tolerance": Tolerance(min_replies=0.5, attempts=50)}
    rest = {name: value for name, value in schedule.items() if name not in grid}
    runs = wafl.sweep(wafl.models.mlr(CLIENTS).double(), CLIENTS, method, grid, **rest, **patience)
    for run in runs:
        point = run.settings["sweep"]
        options = {name: value for name, value in point.items() if name in method.options()}
        timing = {name: value for name, value in point.items() if name not in options}
        assert_same(run, fit(method.with_options(**options), {**schedule, **timing}, **patience))
    attempts = [tuple(run.history.column("attempts")) for run in runs]
    assert len(set(attempts)) > 1
    assert max(map(max, attempts)) > 1


# -- Rounds without the clients that fail, by hand ------------------------------------------------------------


FAULTS = Faults(dropout=0.2, nan=0.1, wrong_shape=0.1, seed=3)
LENIENT = Tolerance(min_replies=0.0)


class ByHand:
    """The clients of the reference, of which only those that do not fail count."""

    def __init__(self, work: reference.Work) -> None:
        model = torch.nn.Linear(2, 3).double()
        self.objective = reference.Minimized(model, reference.cross_entropy)
        self.start = {"weight": torch.zeros(3, 2).double(), "bias": torch.zeros(3).double()}
        self.pairs, self.work = pairs(), work

    def update(self, params: reference.Params, round: int, client: int) -> reference.Update:
        still, plain = reference.Unmoved(), reference.Prox(0.0)
        examples = self.pairs[client]
        return reference.local_training(
            self.objective, params, examples, self.work, still, 0.3, 0.0, 0, round, client, plain
        )

    def survivors(self, asked: list[int], round: int, kind: str = "train") -> list[int]:
        return [client for client in asked if fate(FAULTS, 0, round, client, kind=kind) is None]


def assert_agree(run: wafl.Run, params: reference.Params, weights: list[float]) -> None:
    for name in params:
        torch.testing.assert_close(run.params[f"1.{name}"], params[name], rtol=0, atol=1e-12)
    assert run.client_weights.tolist() == pytest.approx(weights, abs=1e-12)


def test_fedavg_is_the_mean_of_the_clients_that_count() -> None:
    hand = ByHand(reference.Work(local_steps=3, batch_size=4))
    params, lost = hand.start, 0
    for t in range(6):
        asked = reference.choose(0, reference.COHORT, t, len(SIZES), 5)
        survivors = hand.survivors(asked, t)
        lost += len(asked) - len(survivors)
        shares = [SIZES[client] / sum(SIZES[other] for other in survivors) for client in survivors]
        params = reference.weighted_sum(shares, [hand.update(params, t, client).path[-1] for client in survivors])
    assert lost > 0
    run = fit(wafl.FedAvg(), rounds=6, faults=FAULTS, tolerance=LENIENT)
    assert_agree(run, params, [size / sum(SIZES) for size in SIZES])


def test_afl_leaves_the_weights_of_absent_clients_alone_until_it_projects() -> None:
    hand = ByHand(reference.Work(local_steps=1, batch_size=4))
    params, lam, lost = hand.start, [1 / len(SIZES)] * len(SIZES), 0
    for t in range(6):
        survivors = hand.survivors(list(range(len(SIZES))), t)
        lost += len(SIZES) - len(survivors)
        updates = {client: hand.update(params, t, client) for client in survivors}
        shares = [lam[client] / sum(lam[other] for other in survivors) for client in survivors]
        params = reference.weighted_sum(shares, [updates[client].path[-1] for client in survivors])
        lam = reference.project([w + 0.1 * (updates[c].loss if c in updates else 0.0) for c, w in enumerate(lam)])
    assert lost > 0
    run = fit(wafl.AFL(weights_step=0.1), ALL, rounds=6, faults=FAULTS, tolerance=LENIENT)
    assert_agree(run, params, lam)


def test_drfa_counts_the_clients_that_replied_in_each_of_its_queries() -> None:
    hand, cohort, total = ByHand(reference.Work(local_steps=3, batch_size=4)), 5, len(SIZES)
    params, lam, lost, unheard = hand.start, [1 / total] * total, 0, 0
    for t in range(6):
        drawn = sorted(reference.choose_by_weight(0, t, lam, cohort))
        survivors = hand.survivors(drawn, t)
        lost += len(drawn) - len(survivors)
        updates = [hand.update(params, t, client) for client in survivors]
        shares = [1 / len(survivors)] * len(survivors)
        step = reference.draw(0, reference.SNAPSHOT, t, 0, 0, 1)[0] % 3 + 1
        snapshot = reference.weighted_sum(shares, [update.path[step] for update in updates])
        params = reference.weighted_sum(shares, [update.path[-1] for update in updates])
        asked = reference.choose(0, reference.LOSS_COHORT, t, total, cohort)
        heard = hand.survivors(asked, t, "loss")
        unheard += len(asked) - len(heard)
        for client in heard:
            lam[client] += 3 * 0.05 * total / len(heard) * hand.objective.mean(snapshot, *hand.pairs[client])
        lam = reference.project(lam)
    assert lost > 0
    assert unheard > 0
    run = fit(wafl.DRFA(weights_step=0.05), rounds=6, faults=FAULTS, tolerance=LENIENT)
    assert_agree(run, params, lam)
    reasons = [reason for record in run.history for _, reason in record.excluded]
    assert sum(reason.startswith("loss: ") for reason in reasons) == unheard


def test_the_loss_of_a_round_is_the_mean_of_the_clients_that_count() -> None:
    hand = ByHand(reference.Work(local_steps=3, batch_size=4))
    run = fit(wafl.FedAvg(), init={f"1.{name}": value + 1.0 for name, value in hand.start.items()},
              rounds=1, faults=FAULTS, tolerance=LENIENT)  # fmt: skip
    survivors = hand.survivors(reference.choose(0, reference.COHORT, 0, len(SIZES), 5), 0)
    start = {name: value + 1.0 for name, value in hand.start.items()}
    losses = {client: hand.update(start, 0, client).loss for client in survivors}
    mean = sum(SIZES[client] * losses[client] for client in survivors) / sum(SIZES[client] for client in survivors)
    assert run.history[0].loss == pytest.approx(mean, abs=1e-12)
    assert run.history[0].participants == tuple(survivors)


def test_a_learned_gamma_follows_only_the_clients_that_count() -> None:
    """The reply of a client that is left out says nothing about the radius."""
    run = fit(wafl.WAFL(radius=0.5), rounds=2, faults=Faults(nan=0.3, seed=1), tolerance=LENIENT)
    first, second = run.history
    assert first.gamma == second.gamma, "a model of zeros cannot move, which says nothing about gamma"
    assert second.excluded
    assert second.achieved_radius is not None
    assert 0 < second.achieved_radius < 1e-3, "the first gamma is large"
    assert run.settings["scalars"]["gamma"] == pytest.approx(second.gamma * 2 * second.achieved_radius / 0.5)


# -- Which replies count --------------------------------------------------------------------------------------


def reply(client: int, params: list[float] | None = None, snapshot: Tensor | None = None, **changes: Any) -> Reply:
    vectors = {"params": torch.tensor([1.0, 0.0, 0.0] if params is None else params)}
    vectors |= {} if snapshot is None else {"snapshot": snapshot}
    return Reply(
        **{"client": client, "loss": torch.tensor(0.5), "cost": torch.tensor(0.0), "vectors": vectors, **changes}
    )


def ask(*clients: int, iterates: dict[str, int] | None = None, kind: Any = "train") -> Query:
    weights = torch.tensor([10.0 * (client + 1) for client in clients])
    return Query(kind, 0, 0, clients, weights, torch.zeros(3), {}, iterates=iterates or {})


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (reply(1, [1.0, math.nan, 0.0]), "update with NaN or infinity"),
        (reply(1, [1.0, -math.inf, 0.0]), "update with NaN or infinity"),
        (reply(1, [1.0, 0.0]), "update of shape (2,), asked for (3,)"),
        (reply(1, loss=torch.tensor(math.nan)), "loss with NaN or infinity"),
        (reply(1, loss=torch.tensor([0.5])), "loss of shape (1,), asked for a number"),
        (reply(1, cost=torch.tensor(math.inf)), "cost with NaN or infinity"),
        (Reply(1, torch.tensor(0.5), torch.tensor(0.0)), "no update"),
        (reply(1, [200.0, 0.0, 0.0]), "an update of length 200, above 100"),
        (reply(1, [99.0, 0.0, 0.0]), None),
        (reply(1, cost=torch.tensor(-1e-3)), "a cost of -0.001, which is negative"),
        (reply(1, loss=torch.tensor(1e30)), "a loss of 1e+30, above 100"),
        (reply(1, loss=torch.tensor(99.0)), None),
        (reply(1, loss=torch.tensor(-99.0)), None),
    ],
)
def test_a_reply_that_cannot_be_used_is_left_out_with_its_reason(bad: Reply, reason: str | None) -> None:
    received = [reply(3), bad, reply(0), reply(2)]
    admitted = admit(ask(0, 1, 2, 3), received, Tolerance())
    counted, replies = admitted.query, admitted.replies
    assert admitted.excluded == ({} if reason is None else {1: reason})
    expected = (0, 1, 2, 3) if reason is None else (0, 2, 3)
    assert counted.clients == replies.clients == expected, "in the order they were asked, not as they came"
    assert counted.weights.tolist() == [10.0 * (client + 1) for client in expected], "weights stay as they were"
    assert len(replies.params) == len(replies.loss) == len(expected)


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (None, "no snapshot"),
        (torch.zeros(2), "snapshot of shape (2,), asked for (3,)"),
        (torch.tensor([0.0, 0.0, math.nan]), "snapshot with NaN or infinity"),
    ],
)
def test_a_reply_without_a_usable_snapshot_is_left_out_if_one_was_asked_for(
    snapshot: Tensor | None, reason: str
) -> None:
    good = [reply(client, snapshot=torch.zeros(3)) for client in (0, 2)]
    admitted = admit(ask(0, 1, 2, iterates={"snapshot": 1}), [*good, reply(1, snapshot=snapshot)], Tolerance())
    assert admitted.excluded == {1: reason}
    assert admitted.replies.vectors["snapshot"].shape == (2, 3)


def test_a_reply_to_a_query_for_losses_needs_no_update() -> None:
    losses = [Reply(client, torch.tensor(1.0 + client), torch.tensor(0.0)) for client in range(3)]
    admitted = admit(ask(0, 1, 2, kind="loss"), losses, Tolerance())
    assert (admitted.query.clients, admitted.excluded) == ((0, 1, 2), {})
    assert (admitted.replies.loss.tolist(), admitted.replies.vectors) == ([1.0, 2.0, 3.0], {})


def test_if_no_reply_can_be_used_nobody_counts() -> None:
    admitted = admit(ask(0, 1), [reply(c, [math.nan] * 3) for c in (0, 1)], Tolerance())
    assert (admitted.query.clients, admitted.replies.clients, len(admitted.excluded)) == ((), (), 2)


def test_an_update_is_outsized_only_among_three_or_more_that_move() -> None:
    pair = [reply(0), reply(1, [1e9, 0.0, 0.0])]
    assert admit(ask(0, 1), pair, Tolerance(outsized=1.5)).excluded == {}
    assert len(admit(ask(0, 1, 2), [*pair, reply(2)], Tolerance(outsized=1.5)).excluded) == 1
    still = [reply(client, [0.0, 0.0, 0.0]) for client in range(3)]
    assert admit(ask(0, 1, 2, 3), [*still, reply(3)], Tolerance()).excluded == {}, (
        "if most stand still, every move is long"
    )


def test_a_loss_or_cost_above_its_cap_is_left_out_with_its_reason() -> None:
    liars = [reply(1, loss=torch.tensor(8.0)), reply(3, loss=torch.tensor(-8.0)), reply(4, cost=torch.tensor(3.0))]
    admitted = admit(ask(0, 1, 2, 3, 4), [reply(0), reply(2), *liars], Tolerance(), Caps(loss=5.0, cost=2.0))
    assert admitted.query.clients == (0, 2)
    assert admitted.excluded == {
        1: "a loss of 8, above caps.loss = 5",
        3: "a loss of -8, above caps.loss = 5",
        4: "a cost of 3, above caps.cost = 2",
    }


def test_an_update_longer_than_the_clip_is_shortened_and_the_others_keep_their_bits() -> None:
    """Snapshots are models too, and are compared with snapshots; losses need no model."""
    away, snapshots = [[1.0, 0.0, 0.0], [0.0, -30.0, 0.0], [0.0, 0.0, 2.0], [0.5, 0.0, 0.0]], [0.1, 9.0, 0.1, 0.1]
    received = [reply(i, away[i], torch.tensor([0.0, 0.0, snapshots[i]])) for i in range(4)]

    def bounded(query: Query, replies: list[Reply], clip: float = math.inf) -> Admitted:
        return Trust(clip).bound(admit(query, replies, Tolerance()), decides=False, aimed=None)

    admitted = bounded(ask(0, 1, 2, 3, iterates={"snapshot": 1}), received, 2.0)
    assert admitted.excluded == {}
    assert admitted.shortened == {1: pytest.approx(1 / 15)}, "the lower median is 1"
    assert admitted.replies.params.tolist() == [away[0], [0.0, pytest.approx(-2.0), 0.0], away[2], away[3]]
    assert admitted.replies.vectors["snapshot"][:, 2].tolist() == pytest.approx([0.1, 0.2, 0.1, 0.1])
    two = bounded(ask(0, 1), received[:2], 2.0)
    assert two.shortened == {1: pytest.approx(1 / 15)}, "of two, the longer is compared with the shorter"
    assert bounded(ask(0, 1), received[:2]).shortened == {}, "by default none is"
    losses = [Reply(client, torch.tensor(1.0), torch.tensor(0.0)) for client in range(3)]
    assert bounded(ask(0, 1, 2, kind="loss"), losses, 1.0).shortened == {}


def test_who_was_shortened_is_in_the_history_of_a_run() -> None:
    heavy = [(x * (10.0 if client == 2 else 1.0), y) for client, (x, y) in enumerate(pairs())]
    spoilt = wafl.Federation.from_arrays(heavy, test_fraction=0)
    run = fit(wafl.FedAvg(), ALL, spoilt, rounds=2, tolerance=Tolerance(clip=2.0))
    for record in run.history:
        assert [client for client, _ in record.shortened] == [2]
        assert 0.0 < record.shortened[0][1] < 1.0
        assert 2 in record.participants
    assert History.from_json(json.loads(json.dumps(run.history.to_json())))[0].shortened == run.history[0].shortened


# -- Too few --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "replies", "asked", "enough"),
    [(0.5, 5, 10, True), (0.5, 4, 10, False), (0.5, 2, 5, False), (0.5, 3, 5, True), (0.0, 1, 10, True),
     (0.0, 0, 10, False), (1.0, 9, 10, False), (1.0, 10, 10, True), (0.3, 3, 10, True)],
)  # fmt: skip
def test_a_round_needs_the_share_of_replies_that_the_tolerance_says(
    share: float, replies: int, asked: int, enough: bool
) -> None:
    assert Tolerance(min_replies=share).enough(replies, asked) is enough


def test_a_round_is_repeated_until_enough_reply() -> None:
    """What happens to a client is drawn again in each attempt; the first attempt that is good enough counts."""
    faults, tolerance = Faults(dropout=0.3, nan=0.2), Tolerance(min_replies=0.7, attempts=100)
    run = fit(wafl.FedAvg(), ALL, rounds=8, faults=faults, tolerance=tolerance)
    for record in run.history:
        counts = [
            sum(fate(faults, 0, record.round, client, attempt) is None for client in range(8))
            for attempt in range(record.attempts)
        ]
        assert all(count < 0.7 * 8 for count in counts[:-1])
        assert counts[-1] >= 0.7 * 8
        assert len(record.participants) == counts[-1]
        last = {c for c in range(8) if fate(faults, 0, record.round, c, record.attempts - 1) is not None}
        assert {client for client, _ in record.excluded} == last, "of the attempt that counted alone"
    assert max(run.history.column("attempts")) > 2


def test_if_every_reply_is_not_finite_the_error_speaks_of_the_learning_rate() -> None:
    """The model may diverge, or the clients may be broken: a server cannot tell."""
    with pytest.raises(TooFewRepliesError, match=r"every reply came and none was finite: .* lower the learning rate"):
        fit(wafl.FedAvg(), faults=Faults(nan=1.0))
    with pytest.raises(TooFewRepliesError) as missing:
        fit(wafl.FedAvg(), faults=Faults(dropout=0.99), tolerance=Tolerance(min_replies=1.0, attempts=1))
    assert "learning rate" not in str(missing.value)


def test_too_few_replies_end_the_training_with_the_round() -> None:
    seen: list[Record] = []
    with pytest.raises(
        TooFewRepliesError,
        match=r"round 0: fewer than 50% of 5 clients gave a usable reply \(update with NaN .*\), 3 times",
    ):
        fit(wafl.FedAvg(), faults=Faults(nan=1.0), callbacks=[lambda moment: seen.append(moment.record)])
    assert seen == []
    for fault in ("dropout", "late", "infinity", "wrong_shape"):
        with pytest.raises(TooFewRepliesError, match=r"100% of 5 clients .* 1 times"):
            fit(wafl.FedAvg(), faults=Faults(**{fault: 0.99}),
                tolerance=Tolerance(min_replies=1.0, attempts=1),
            )  # fmt: skip


def hindered(runs: int) -> tuple[Faults, int]:
    """Faults that leave less than 70% of the clients in one of the runs, and the first round in which they do."""
    for seed in range(100):
        faults = Faults(dropout=0.3, seed=seed)
        present = [[sum(fate(faults, run, t, c) is None for c in range(8)) for run in range(runs)] for t in range(8)]
        first = next((t for t, counts in enumerate(present) if min(counts) < 0.7 * 8), 0)
        if first >= 2:
            return faults, first
    raise AssertionError("there are no such faults")


def test_the_rounds_before_one_with_too_few_replies_are_kept(tmp_path: Path) -> None:
    """The same call fails again in the same round; one that tolerates more goes on from there."""
    faults, expected = hindered(runs=1)
    strict = Tolerance(min_replies=0.7, attempts=1)
    rounds: list[int] = []

    def call(tolerance: Tolerance) -> wafl.Run:
        return fit(wafl.FedRobust(), rounds=8, cohort=8, faults=faults, tolerance=tolerance,
            checkpoint=Checkpoint(tmp_path),
            callbacks=[lambda moment: rounds.append(moment.record.round)],
        )  # fmt: skip

    with pytest.raises(TooFewRepliesError) as first:
        call(strict)
    before = {path.name: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    assert rounds == list(range(expected))
    assert f"round {expected}:" in str(first.value)
    with pytest.raises(TooFewRepliesError) as again:
        call(strict)
    assert str(again.value) == str(first.value)
    assert {path.name: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before
    run = call(LENIENT)
    assert rounds == list(range(8)), "none was trained twice"
    assert len(run.history) == 8


def test_a_run_of_a_sweep_that_cannot_go_on_does_not_lose_the_rounds_of_the_others(tmp_path: Path) -> None:
    faults, expected = hindered(runs=3)
    call = {
        **ALL, "rounds": 8, "faults": faults, "tolerance": Tolerance(min_replies=0.7, attempts=1),
        "checkpoint": Checkpoint(tmp_path),
    }  # fmt: skip
    model, reached = wafl.models.mlr(CLIENTS).double(), Counter[int]()

    def count(moment: Moment) -> None:
        reached[moment.index] += 1

    with pytest.raises(TooFewRepliesError):
        wafl.sweep(model, CLIENTS, wafl.FedAvg(), {"seed": [0, 1, 2]}, **call, callbacks=[count])
    assert reached == {0: expected, 1: expected, 2: expected}
    call["tolerance"] = LENIENT
    runs = wafl.sweep(model, CLIENTS, wafl.FedAvg(), {"seed": [0, 1, 2]}, **call, callbacks=[count])
    assert reached == {0: 8, 1: 8, 2: 8}
    assert [len(run.history) for run in runs] == [8, 8, 8]


# -- Clients that fail by themselves --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def overflowing() -> wafl.Federation:
    """In float32, client 3's inputs are finite, but their outputs are not once the model has moved."""
    spoilt = [((x * (1e30 if client == 3 else 1.0)).float(), y) for client, (x, y) in enumerate(pairs())]
    return wafl.Federation.from_arrays(spoilt, test_fraction=0)


@pytest.mark.parametrize("patience", [{"tolerance": Tolerance()}, {"faults": Faults()}], ids=["tolerance", "faults"])
def test_with_a_tolerance_a_client_with_nan_is_left_out_and_the_others_train(
    overflowing: wafl.Federation, patience: dict[str, Any]
) -> None:
    work = {**ALL, "local_steps": 3}
    run = wafl.fit(wafl.models.mlr(overflowing), overflowing, wafl.FedAvg(), **work, **patience)
    for record in run.history:
        assert [client for client, _ in record.excluded] == [3]
        assert "NaN or inf" in record.excluded[0][1]
    others = wafl.weights.fixed([0 if client == 3 else size for client, size in enumerate(SIZES)])
    healthy = wafl.Federation.from_arrays([(x.float(), y) for x, y in pairs()], test_fraction=0)
    alone = wafl.fit(wafl.models.mlr(healthy), healthy, wafl.FedAvg(client_weights=others), **work)
    for name, value in alone.params.items():
        torch.testing.assert_close(run.params[name], value, rtol=0, atol=1e-6)


# -- What clients keep ----------------------------------------------------------------------------------------


def memories(folder: Path, **changes: Any) -> tuple[wafl.Run, list[dict[int, Tensor]]]:
    """The clients' FedRobust maps after each round."""
    kept_memory: list[dict[int, Tensor]] = []

    def look(moment: Moment) -> None:
        if moment.record.round:
            progress, _ = read_progress(sorted(path for path in folder.iterdir() if path.name.isdigit())[-1])
            kept_memory.append({client: kept["objective"] for (_, client), kept in progress.memory.items()})

    run = fit(wafl.FedRobust(step_size=0.1), **changes, checkpoint=Checkpoint(folder), callbacks=[look])
    return run, kept_memory


def test_the_memory_of_a_client_stays_as_it_is_while_the_client_is_away(tmp_path: Path) -> None:
    run, kept = memories(tmp_path, cohort=8, rounds=6, faults=Faults(dropout=0.4), tolerance=LENIENT)
    away = 0
    for before, record, after in zip(kept[:-1], run.history[1:], kept[1:], strict=False):
        for client in range(8):
            if client in record.participants:
                assert client not in before or not torch.equal(after[client], before[client])
            else:
                away += client in before
                assert (client in after) == (client in before)
                assert client not in before or torch.equal(after[client], before[client])
    assert away > 3


def test_a_repeated_round_starts_from_the_memory_of_before_its_first_attempt(tmp_path: Path) -> None:
    """A failed attempt leaves no trace: the round equals one that has only the faults of the last attempt."""
    faults, strict = Faults(dropout=0.45), Tolerance(min_replies=0.6, attempts=100)
    run, kept = memories(tmp_path, cohort=8, rounds=2, faults=faults, tolerance=strict)
    assert run.history[0].attempts > 1
    plain, whole = memories(tmp_path / "plain", cohort=8, rounds=2)
    for client in run.history[0].participants:
        torch.testing.assert_close(kept[0][client], whole[0][client], rtol=0, atol=1e-12)
    assert not plain.history[0].excluded
