"""Rules that weigh a cohort by its losses: the weights of given losses, and what training with them finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import wafl
from tests.oracles import reweighing
from wafl.parts.messages import Replies
from wafl.parts.schedule import Schedule
from wafl.train.server import Algorithm
from wafl.weights import (
    Reweighted,
    Round,
    agnostic,
    chi2,
    cvar,
    fixed,
    kl,
    project_to_simplex,
    qffl,
    rex,
    slack,
    snapshot,
    term,
    uniform,
)

CENTER = [0.1, 0.3, 0.2, 0.4]
LOSSES = [2.0, 0.5, 1.0, 0.1]


def weights_of(rule: Reweighted, losses: list[float], center: list[float] = CENTER) -> list[float]:
    weights = rule.weigh(*(torch.tensor(values, dtype=torch.float64) for values in (center, losses)))
    assert weights.dtype == torch.float64
    return weights.tolist()


# The solver itself is only right to 1e-7, which smaller numbers would show.
cohorts = st.lists(
    st.tuples(st.floats(0.05, 1.0), st.just(0.0) | st.floats(0.01, 5.0)), min_size=2, max_size=6
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(clients=cohorts, alpha=st.just(0.0) | st.floats(0.01, 0.95))
def test_cvar_has_the_value_of_its_linear_program_and_keeps_its_limits(clients, alpha):
    raw, losses = map(list, zip(*clients, strict=True))
    center = [value / sum(raw) for value in raw]
    ours = weights_of(cvar(alpha), losses, center)
    best = reweighing.superquantile(alpha)(center, losses)
    assert np.dot(ours, losses) == pytest.approx(np.dot(best, losses), abs=1e-9)
    assert sum(ours) == pytest.approx(1.0, abs=1e-12)
    assert all(-1e-12 <= w <= c / (1.0 - alpha) + 1e-9 for w, c in zip(ours, center, strict=True))


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds")  # SLSQP of scipy 1.11, which clips them
@pytest.mark.parametrize("radius", [0.01, 0.1, 0.6])
@pytest.mark.parametrize(
    ("rule", "divergence"), [(kl, reweighing.kl_of_arrays), (chi2, reweighing.chi2_divergence)], ids=["kl", "chi2"]
)
def test_the_weights_of_a_ball_are_those_of_a_convex_solver(rule, divergence, radius):
    ours = weights_of(rule(radius=radius), LOSSES)
    solved = reweighing.solved(divergence, radius)(CENTER, LOSSES)
    assert ours == pytest.approx(solved, abs=2e-5)
    assert np.dot(ours, LOSSES) >= np.dot(solved, LOSSES) - 1e-9
    assert divergence(np.maximum(ours, 1e-300), np.array(CENTER)) == pytest.approx(radius, rel=1e-9)


NOTHING: dict[str, Reweighted] = {
    "cvar": cvar(0.0), "kl": kl(radius=0.0), "chi2": chi2(0.0), "qffl": qffl(0.0), "term": term(0.0),
    "slack": slack(0.0), "rex": rex(0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING)
def test_the_rule_that_leans_nowhere_has_the_weights_of_its_center(name):
    assert weights_of(NOTHING[name], LOSSES) == pytest.approx(CENTER, abs=1e-12)
    assert weights_of(NOTHING[name], [0.0, 0.0, 3.0, 0.0]) == pytest.approx(CENTER, abs=1e-12)


@pytest.mark.parametrize("rule", [cvar(0.95), kl(radius=9.0), chi2(50.0), term(1e6), kl(temperature=1e-6)], ids=repr)
def test_the_widest_ball_has_only_the_worst_client(rule):
    assert weights_of(rule, LOSSES) == pytest.approx([1.0, 0.0, 0.0, 0.0], abs=1e-9)


@pytest.mark.parametrize("rule", [cvar(0.5), kl(radius=0.2), chi2(0.3), term(2.0), qffl(1.5)], ids=repr)
@pytest.mark.parametrize("loss", [0.0, 0.7, 1e12])
def test_clients_with_equal_losses_keep_the_weights_of_the_center(rule, loss):
    assert weights_of(rule, [loss] * 4) == pytest.approx(CENTER, abs=1e-9)


@pytest.mark.parametrize("rule", [cvar(0.7), kl(radius=1.0), chi2(1.0)], ids=repr)
def test_two_worst_clients_share_by_their_weights_in_the_center(rule):
    first, second, *_ = weights_of(rule, [2.0, 2.0, 0.1, 0.0])
    assert second / first == pytest.approx(3.0)


def test_q_ffl_refuses_a_negative_loss():
    with pytest.raises(ValueError, match=r"power q=2, and a client has the loss -0.5: use a loss that is never"):
        weights_of(qffl(2.0), [1.0, -0.5, 1.0, 1.0])


# -- In a round -----------------------------------------------------------------------------------------------


def test_losses_are_asked_before_training_and_clients_without_weight_are_not_trained():
    method = wafl.CVaR(alpha=0.6, center=uniform())
    algorithm = Algorithm(method, Schedule(rounds=1, local_steps=1), [5] * 4, lambda params: 0.0)
    state = algorithm.init(torch.zeros(2, dtype=torch.float64))
    asked = algorithm.ask(state)
    assert (asked.kind, asked.clients) == ("loss", (0, 1, 2, 3))
    assert torch.equal(asked.params, state.params)
    state = algorithm.tell(state, asked, Replies(asked.clients, torch.tensor([1.0, 4.0, 3.0, 2.0]), torch.zeros(4)))
    assert state.client_weights.tolist() == pytest.approx([0.0, 0.625, 0.375, 0.0])
    train = algorithm.ask(state)
    assert (train.kind, train.clients, train.iterates) == ("train", (1, 2), {})
    ends = {"params": torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)}
    state = algorithm.tell(state, train, Replies((1, 2), torch.ones(2), torch.zeros(2), ends))
    assert state.params.tolist() == pytest.approx([0.625, 0.375])
    assert (state.round, dict(state.vectors)) == (1, {})
    assert algorithm.ask(state) is None


def test_a_client_that_the_center_leaves_out_never_gets_a_weight():
    now = Round(0, 0, 3, 3, 1, [1] * 3)
    for rule in (
        cvar(0.5, center=fixed([1, 0, 1])),
        kl(radius=3.0, center=fixed([1, 0, 1])),
        chi2(3.0, center=fixed([1, 0, 1])),
    ):
        weights = rule.learn(rule.initial([1] * 3), [0, 1, 2], torch.tensor([1.0, 9.0, 2.0]), now)
        assert float(weights[1]) == 0.0
        assert float(weights.sum()) == pytest.approx(1.0)


def test_a_cohort_that_the_center_leaves_out_changes_nothing():
    clients = wafl.Federation.from_arrays([([[1.0]], [0]), ([[2.0]], [1]), ([[1.5]], [0])], test_fraction=0)
    method = wafl.TERM(center=fixed([0, 0, 1]))
    run = wafl.fit(wafl.models.mlr(clients), clients, method, rounds=8, cohort=1, local_steps=1, learning_rate=0.5)
    trained = [record.cohort for record in run.history if record.client_weights[2] > 0]
    assert trained
    assert len(trained) < 8


# -- In training ----------------------------------------------------------------------------------------------


def line(start: float) -> nn.Module:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, start)
    return model


def parabola(target: float, height: float = 0.0) -> tuple[list[list[float]], list[float]]:
    """A client whose loss is ``(w - target)^2 + height``."""
    return [[1.0], [1.0]], [target + height**0.5, target - height**0.5]


def one_round(pairs, method: wafl.Method, start: float, rate: float = 0.1, steps: int = 1) -> float:
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    run = wafl.fit(
        line(start), clients, method, rounds=1, local_steps=steps, batch_size=None, learning_rate=rate,
        loss="squared_error",
    )  # fmt: skip
    return float(run.params["weight"])


@pytest.mark.parametrize("q", [0.0, 0.4, 1.0, 3.0])
def test_q_ffl_with_a_client_of_loss_zero_takes_a_finite_step_toward_the_others(q):
    """Client 0 is at its minimum, with loss 0 and no update; the limit of a small loss is the same step."""
    exact = one_round([parabola(0.0), parabola(2.0)], wafl.QFFL(q=q, center=uniform()), 0.0)
    assert 0.0 < exact < 0.4
    near = one_round([parabola(1e-4), parabola(2.0)], wafl.QFFL(q=q, center=uniform()), 0.0)
    assert exact == pytest.approx(near, abs=0.05 if 0 < q < 1 else 1e-3)


def test_q_ffl_rests_where_every_client_has_loss_zero():
    assert one_round([parabola(1.0), parabola(1.0)], wafl.QFFL(q=0.5), 1.0) == 1.0


# -- DRFA-Prox ------------------------------------------------------------------------------------------------


def test_the_proximal_step_maximizes_the_penalized_step():
    """``argmin 1/2 ||u - climbed||^2 + K step prox/2 ||u - 1/m||^2`` over the simplex, by a general solver."""
    weights, losses = torch.tensor(CENTER, dtype=torch.float64), torch.tensor(LOSSES, dtype=torch.float64)
    now, step, prox = Round(0, 0, 4, 4, 2), 0.1, 3.0
    ours = snapshot(step, prox).learn(weights, range(4), losses, now).numpy()
    climbed = np.array(CENTER) + 2 * step * np.array(LOSSES)
    at = project_to_simplex(torch.tensor((climbed + 2 * step * prox / 4) / (1 + 2 * step * prox))).numpy()

    def value(u: np.ndarray) -> float:
        return float(0.5 * ((u - climbed) ** 2).sum() + 2 * step * prox / 2 * ((u - 0.25) ** 2).sum())

    slope = (ours - climbed) + 2 * step * prox * (ours - 0.25)
    assert max(slope @ ours - slope @ vertex for vertex in np.eye(4)) <= 1e-12, "no vertex of the simplex is better"
    assert value(ours) <= value(at) + 1e-12


# -- Options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kl(1.0, radius=0.1), r"give temperature or radius, not both \(temperature=1.0, radius=0.1\)"),
        (lambda: cvar(0.5, center=agnostic()), r"center=Agnostic.* must be weights that do not change"),
        (lambda: wafl.CVaR(center=[0.5, 0.5]), r"center=\[0.5, 0.5\] must be weights that do not change"),
    ],
)
def test_options_that_do_not_go_together_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_new_temperature_replaces_a_radius_and_back():
    assert wafl.FGDRO(radius=0.3).with_options(temperature=2.0) == wafl.FGDRO(temperature=2.0)
    assert wafl.FGDRO(temperature=2.0).with_options(radius=0.3) == wafl.FGDRO(radius=0.3)
