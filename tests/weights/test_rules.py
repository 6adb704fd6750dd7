"""Client weights: fixed rules, and the projection that learned ones rest on."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import wafl
from wafl.weights import agnostic, by_examples, fixed, project_to_simplex, snapshot, uniform

vectors = st.lists(st.floats(-100, 100), min_size=1, max_size=12)


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
def test_initial_weights(rule, wanted):
    weights = rule.initial([10, 30, 60])
    assert weights.dtype == torch.float64
    assert weights.tolist() == pytest.approx(wanted, abs=1e-15)


def test_weights_reach_the_run():
    x, y = torch.arange(8.0)[:, None], torch.arange(8) % 2
    clients = wafl.Federation.from_arrays([(x[:2], y[:2]), (x[2:], y[2:])], test_fraction=0)
    for rule, wanted in [(None, [0.25, 0.75]), (uniform(), [0.5, 0.5]), (fixed([9, 1]), [0.9, 0.1])]:
        model = wafl.models.mlr(clients)
        run = wafl.fit(model, clients, wafl.FedAvg(), rounds=1, local_steps=1, client_weights=rule)
        assert run.client_weights.tolist() == pytest.approx(wanted)


def test_step_sizes_may_be_functions_of_the_round():
    assert agnostic(lambda t: 1.0 / (1 + t)).step(3) == 0.25
    assert snapshot(0.5).step(3) == 0.5


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6))
def test_projection_agrees_with_a_general_solver(values):
    v = np.array(values)
    solved = minimize(
        lambda p: ((p - v) ** 2).sum(),
        np.full(len(v), 1 / len(v)),
        jac=lambda p: 2 * (p - v),
        bounds=[(0, 1)] * len(v),
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones_like(p)},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 300},
    )
    ours = project_to_simplex(torch.tensor(values, dtype=torch.float64)).numpy()
    assert ((ours - v) ** 2).sum() <= solved.fun + 1e-9
    np.testing.assert_allclose(ours, solved.x, atol=1e-5)


@settings(max_examples=200, deadline=None)
@given(vectors)
def test_projection_is_on_the_simplex_and_nearest(values):
    """p is nearest to v exactly if no vertex q of the simplex has ``<v - p, q - p> > 0``."""
    v = torch.tensor(values, dtype=torch.float64)
    p = project_to_simplex(v)
    assert float(p.min()) >= 0
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    pull = v - p
    assert float((pull - pull @ p).max()) <= 1e-9


@settings(max_examples=50, deadline=None)
@given(vectors)
def test_projection_leaves_the_simplex_alone(values):
    weights = torch.tensor(values, dtype=torch.float64).softmax(0)
    torch.testing.assert_close(project_to_simplex(weights), weights, atol=1e-14, rtol=0)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([5.0], [1.0]),
        ([-7.0], [1.0]),
        ([0.9, 0.5], [0.7, 0.3]),
        ([0.0, 0.0, 0.0, 0.0], [0.25] * 4),
        ([10.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ([1.0, 1.0, -9.0], [0.5, 0.5, 0.0]),
    ],
)
def test_projection_by_hand(values, wanted):
    ours = project_to_simplex(torch.tensor(values, dtype=torch.float64))
    assert ours.tolist() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1e17, 0.0], [1.0, 0.0]),
        ([-1e17, 0.25, 0.25], [0.0, 0.5, 0.5]),
        ([2.0**40 + 0.5, 2.0**40 + 0.25, 2.0**40], [7 / 12, 4 / 12, 1 / 12]),
    ],
)
def test_projection_of_large_values(values, wanted):
    """These inputs are exact in float64, so the answer owes nothing to their size."""
    ours = project_to_simplex(torch.tensor(values, dtype=torch.float64))
    assert ours.tolist() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("method", ["AFL", "DRFA"])
@settings(max_examples=12, deadline=None)
@given(step=st.floats(1e-3, 1e3), seed=st.integers(0, 2**32 - 1), local_steps=st.integers(1, 3))
def test_learned_weights_stay_on_the_simplex(method, step, seed, local_steps):
    x = torch.tensor([[1.0], [2.0], [-1.0], [0.5], [3.0], [-2.0]])
    y = torch.tensor([0, 1, 1, 0, 1, 0])
    clients = wafl.Federation.from_arrays([(x[:1], y[:1]), (x[1:3], y[1:3]), (x[3:], y[3:])], test_fraction=0)
    seen = []

    def check(place, record, state):
        seen.append(state.client_weights)
        assert float(state.client_weights.min()) >= 0
        assert float(state.client_weights.sum()) == pytest.approx(1, abs=1e-9)

    options = {"local_steps": 1} if method == "AFL" else {"local_steps": local_steps, "cohort": 2}
    wafl.fit(
        wafl.models.mlr(clients),
        clients,
        getattr(wafl, method)(weights_step=step),
        rounds=4,
        learning_rate=0.1,
        seed=seed,
        on_round=check,
        **options,
    )
    assert len(seen) == 4
    assert any(not torch.equal(weights, seen[0]) for weights in seen[1:]) or float(seen[0].max()) == 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.5, -0.1], "client 1 has weight -0.1: weights must be finite and at least 0"),
        ([float("nan"), 1], "client 0 has weight nan"),
        ([float("inf"), 1], "client 0 has weight inf"),
        ([0, 0], "all client weights are 0: at least one client must count"),
        ([], "client"),
    ],
)
def test_bad_weights(values, message):
    with pytest.raises(ValueError, match=message):
        fixed(values)


@pytest.mark.parametrize("step", [0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("rule", [agnostic, snapshot])
def test_bad_step(rule, step):
    with pytest.raises(ValueError, match=f"={step} .*must be positive and finite"):
        rule(step)
