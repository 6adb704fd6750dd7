"""Rules for the client weights: what each gives, what a rule must implement, and the projection of learned weights."""

import numpy as np
import pytest
import torch

import wafl
from wafl.parts.client_weights import uniform_cohort
from wafl.weights import (
    ClientWeights,
    Cohort,
    Learned,
    LossQuery,
    Round,
    agnostic,
    by_examples,
    fixed,
    gap,
    project_to_simplex,
    qffl,
    snapshot,
    uniform,
)


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (by_examples(), [0.1, 0.3, 0.6]),
        (uniform(), [1 / 3, 1 / 3, 1 / 3]),
        (fixed([2, 0, 6]), [0.25, 0, 0.75]),
        (fixed(torch.tensor([1.0, 1.0, 2.0])), [0.25, 0.25, 0.5]),
        (fixed(np.array([1e-300, 1e-300, 0])), [0.5, 0.5, 0]),
        (fixed([1e308, 1e308, 1e308]), [1 / 3, 1 / 3, 1 / 3]),
        (agnostic(), [1 / 3, 1 / 3, 1 / 3]),
        (snapshot(), [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_each_rule_starts_from_its_own_weights_in_double_precision(rule, wanted):
    weights = rule.initial([10, 30, 60])
    assert weights.dtype == torch.float64
    assert weights.tolist() == pytest.approx(wanted, abs=1e-15)


def test_a_gap_counts_for_clients_that_trained_in_the_round_before_and_no_weight_is_negative():
    nan, weights = float("nan"), torch.tensor([0.4, 0.02, 0.28, 0.3], dtype=torch.float64)
    last = torch.tensor([1.0, 3.0, nan, 2.0], dtype=torch.float64)
    now = Round(1, 0, 4, 3, 1, last_losses=last, rounds=5)
    rule, losses = gap(0.5), torch.tensor([1.5, 1.0, 9.0])
    step = 0.5 * (1 - 1 / 5) / 4
    raw = torch.tensor([0.4 + step * 0.5 / 2, 0.0, 0.28, 0.3], dtype=torch.float64)
    torch.testing.assert_close(rule.learn(weights, (0, 1, 2), losses, now), raw / raw.sum())
    assert torch.equal(rule.learn(weights, (2,), losses[:1], now), weights), "no client has a gap"
    assert torch.equal(rule.learn(weights, (0, 1), losses[:2], Round(0, 0, 4, 3, 1, rounds=5)), weights)


def test_the_loss_of_a_client_s_own_model_is_that_of_all_its_examples():
    """What comes with the models is remembered, and is what the clients would report at these models."""
    clients = wafl.load_dataset("digits").partition(num_clients=2, labels_per_client=5, seed=0)
    model, schedule = wafl.models.mlr(clients), {"rounds": 1, "local_steps": 3, "batch_size": 8, "learning_rate": 0.3}
    run = wafl.fit(model, clients, wafl.FedDGGA(), **schedule)
    wanted = []
    for client in range(2):
        alone = wafl.fit(model, clients, wafl.FedAvg(client_weights=fixed([1.0 - client, client])), **schedule)
        x, y = clients.train.of(client)
        wanted.append(float(torch.nn.functional.cross_entropy(alone.model(x), y).detach()))
    assert run.history[0].loss == pytest.approx(sum(wanted) / 2, rel=1e-5)


def test_a_step_size_may_be_a_function_of_the_round():
    assert agnostic(lambda t: 1.0 / (1 + t)).step(3) == 0.25
    assert snapshot(0.5).step(3) == 0.5


# -- What a rule must implement -------------------------------------------------------------------------------


class OwnRule(ClientWeights):
    """As little as a rule must have."""

    def initial(self, num_examples):
        return torch.full((len(num_examples),), 1.0 / len(num_examples), dtype=torch.float64)


class OwnLearnedRule(OwnRule):
    """The same for a rule that learns: all mass goes to the client with the largest loss."""

    def draw(self, weights, round):
        return Cohort((0, 1), weights[:2])

    def loss_query(self, round):
        return LossQuery((0, 1, 2), 1)

    def learn(self, weights, clients, losses, round):
        return torch.eye(len(weights), dtype=torch.float64)[clients[int(losses.argmax())]]


def test_weights_around_fixed_ones_are_as_closed_to_new_clients_as_these():
    assert fixed([1, 2]).closed
    assert not any(rule.closed for rule in (by_examples(), OwnRule(), snapshot()))
    assert qffl(1.0, center=fixed([1, 2])).closed
    assert not qffl(1.0, center=uniform()).closed


def test_a_rule_without_first_weights_is_not_a_rule():
    class Lacking(ClientWeights):
        pass

    with pytest.raises(TypeError, match=r"abstract method.*initial"):
        Lacking()
    with pytest.raises(TypeError, match="does not implement ClientWeights"):
        wafl.FedAvg(client_weights=object())


def test_one_step_drfa_with_all_clients_is_not_afl():
    """The paper's section 6 calls AFL a special case of DRFA; after one round their weights differ.

    AFL's climb the losses where the step began, and DRFA's those where it ended, after clients that lambda has drawn.
    """
    x, step = torch.arange(12.0)[:, None] / 12, 0.5
    labels = [torch.zeros(4).long(), torch.zeros(4).long(), torch.ones(4).long()]
    clients = wafl.Federation.from_arrays(list(zip(x.split(4), labels, strict=True)), test_fraction=0)
    model = wafl.models.mlr(clients)
    schedule = {"rounds": 1, "local_steps": 1, "batch_size": None, "learning_rate": 1.0}
    runs = {
        "AFL": wafl.fit(model, clients, wafl.AFL(weights_step=step), **schedule),
        "DRFA": wafl.fit(model, clients, wafl.DRFA(weights_step=step), cohort=3, **schedule),
    }

    def climbed(at):
        losses = [torch.nn.functional.cross_entropy(at(x), y).item() for x, y in map(clients.train.of, range(3))]
        return project_to_simplex(torch.full((3,), 1 / 3).double() + step * torch.tensor(losses).double())

    torch.testing.assert_close(runs["AFL"].client_weights.double(), climbed(model), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(runs["DRFA"].client_weights.double(), climbed(runs["DRFA"].model), rtol=1e-5, atol=1e-6)
    assert float((runs["AFL"].client_weights - runs["DRFA"].client_weights).abs().max()) > 0.1


class TellsItself(OwnRule):
    def needs_sizes(self, local_steps):
        return local_steps is not None


@pytest.mark.parametrize(
    ("rule", "with_steps", "with_epochs"),
    [
        (by_examples(), True, True),
        (uniform(), False, False),
        (fixed([1, 2]), False, False),
        (Learned(), False, False),
        (agnostic(), False, False),
        (snapshot(), False, True),
        (OwnRule(), True, True),
        (OwnLearnedRule(), True, True),
        (TellsItself(), True, False),
    ],
)
def test_a_server_is_told_the_sizes_only_for_a_rule_that_needs_them(rule, with_steps, with_epochs):
    """DRFA needs them for the number of local steps; a rule that does not say may need them."""
    assert rule.needs_sizes(5) is with_steps
    assert rule.needs_sizes(None) is with_epochs


# -- Clients that join later ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (by_examples(), [0.1, 0.3, 0.2, 0.4]),
        (uniform(), [0.25] * 4),
        (fixed([3, 1]), [0.75, 0.25, 0, 0]),
        (Learned(), [0.375, 0.125, 0.25, 0.25]),
        (agnostic(), [0.375, 0.125, 0.25, 0.25]),
        (snapshot(), [0.375, 0.125, 0.25, 0.25]),
    ],
)
def test_new_clients_get_the_weight_that_the_rule_says_and_the_sum_stays_one(rule, wanted):
    """Two clients with the weights 3/4 and 1/4 are joined by two more."""
    before = torch.tensor([0.75, 0.25], dtype=torch.float64)
    after = rule.enlarged(before, [10, 30, 20, 40])
    assert after.tolist() == pytest.approx(wanted, abs=1e-15)
    assert after.dtype == torch.float64
    assert before.tolist() == [0.75, 0.25], "the old weights are left alone"


# -- Cohorts and schedules ------------------------------------------------------------------------------------


def round_of(number=0, seed=0, cohort=3, local_steps=1):
    return Round(number, seed, num_clients=7, cohort=cohort, local_steps=local_steps)


def test_a_learned_rule_draws_uniformly_and_clients_count_by_their_weights_unless_it_says_otherwise():
    weights = torch.arange(7, dtype=torch.float64)
    cohort = Learned().draw(weights, round_of(number=4))
    assert cohort.clients == uniform_cohort(round_of(number=4))
    assert cohort.weights.tolist() == list(cohort.clients)
    assert Learned().loss_query(round_of()) is None


# -- Bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.5, -0.1], "client 1 has weight -0.1: weights must be finite and at least 0"),
        ([float("nan"), 1], "client 0 has weight nan"),
        ([float("inf"), 1], "client 0 has weight inf"),
        ([0, 0], "all client weights are 0: give at least one client a positive weight"),
        ([], "client"),
    ],
)
def test_weights_that_no_client_can_have_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        fixed(values)
