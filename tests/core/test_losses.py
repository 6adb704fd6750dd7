import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tests.oracles import adversary as oracles
from wafl.core.losses import CrossEntropy, CustomLoss, SquaredError, output_loss

LOSSES = {"cross_entropy": CrossEntropy(), "squared_error": SquaredError()}
TORCH = {
    "cross_entropy": lambda s, y: functional.cross_entropy(s.flatten(0, -2), y.flatten(), reduction="none"),
    "squared_error": lambda s, y: (s - (y if y.ndim == s.ndim else y[..., None])).pow(2).sum(-1).flatten(),
}


def outputs_and_labels(name, seed, lead, outputs):
    rng = np.random.default_rng(seed)
    s = torch.from_numpy(5.0 * rng.normal(size=(*lead, outputs)))
    if name == "cross_entropy":
        return s, torch.from_numpy(rng.integers(outputs, size=lead))
    return s, torch.from_numpy(rng.normal(size=(*lead, outputs) if outputs > 1 else lead))


@oracles.quick
@given(
    st.sampled_from(sorted(LOSSES)),
    st.integers(0, 10**6),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_value_and_gradient_are_torchs(name, seed, lead, outputs):
    s, y = outputs_and_labels(name, seed, lead, outputs)
    expected = TORCH[name](s.requires_grad_(), y)
    (gradient,) = torch.autograd.grad(expected.sum(), s)
    s = s.detach()
    custom = CustomLoss(TORCH[name])
    for loss in (LOSSES[name], custom):
        torch.testing.assert_close(loss.value(s, y), expected.detach().view(lead), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(loss.gradient(s, y), gradient, rtol=1e-12, atol=1e-12)


def test_cross_entropy_of_huge_outputs_is_finite():
    s, y = torch.tensor([[1e30, 0.0], [1e30, 0.0]]), torch.tensor([0, 1])
    assert CrossEntropy().value(s, y).tolist() == pytest.approx([0.0, 1e30])
    assert CrossEntropy().gradient(s, y).tolist() == [[0.0, 0.0], [1.0, -1.0]]


def top_of_hessian(weight, p):
    """The largest eigenvalue of ``W^T (diag p - p p^T) W`` for each row of p."""
    spread = p[:, :, None] * np.eye(p.shape[1]) - p[:, :, None] * p[:, None, :]
    return np.linalg.eigvalsh(weight.T @ spread @ weight)[:, -1]


def hardest_inputs(weight, rng):
    """Inputs from everywhere, and those that put half of the mass on each of two classes."""
    classes, features = weight.shape
    inputs = [rng.normal(size=(2000, features)) * 10.0 ** rng.uniform(-2, 2, size=(2000, 1))]
    for j, k in itertools.combinations(range(classes), 2):
        wanted = np.zeros(classes)
        wanted[[j, k]] = 30.0
        inputs.append(np.linalg.lstsq(weight, wanted, rcond=None)[0][None])
    return np.concatenate(inputs)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("classes", "features"), [(2, 2), (3, 3), (4, 6), (5, 2), (6, 3)])
def test_cross_entropy_curvature_bounds_the_hessian_and_is_tight(classes, features, seed):
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(classes, features))
    bound = float(CrossEntropy().curvature(torch.from_numpy(weight)[None])[0])
    logits = hardest_inputs(weight, rng) @ weight.T
    p = np.exp(logits - logits.max(1, keepdims=True))
    largest = top_of_hessian(weight, p / p.sum(1, keepdims=True)).max()
    assert largest <= bound * (1.0 + 1e-12)
    if classes <= features:  # the rows are affinely independent: any two classes can share the mass
        assert largest >= bound * (1.0 - 1e-3)


def test_curvature_of_equal_rows_is_zero():
    assert CrossEntropy().curvature(torch.ones(1, 3, 4)).tolist() == [0.0]


@pytest.mark.parametrize("shape", [(1, 4), (3, 2), (4, 4)])
def test_squared_error_curvature_is_the_hessians_top(shape):
    weight = torch.from_numpy(np.random.default_rng(1).normal(size=(2, *shape)))
    for lane, bound in enumerate(SquaredError().curvature(weight)):
        y = torch.zeros(shape[0], dtype=torch.float64)
        hessian = torch.autograd.functional.hessian(
            lambda x, w=weight[lane], y=y: SquaredError().value(w @ x, y), torch.ones(shape[1], dtype=torch.float64)
        )
        assert float(bound) == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-10)


def test_curvature_of_a_custom_loss_is_unknown():
    assert CustomLoss(TORCH["cross_entropy"]).curvature(torch.ones(1, 2, 2)) is None


def test_output_loss_takes_a_name_or_a_function():
    assert output_loss("cross_entropy") == CrossEntropy()
    assert output_loss("squared_error") == SquaredError()
    assert output_loss(torch.nn.MSELoss(reduction="none")).name == "MSELoss"
    with pytest.raises(ValueError, match="unknown loss 'hinge': use one of cross_entropy, squared_error"):
        output_loss("hinge")


def test_a_custom_loss_must_give_one_value_an_example():
    with pytest.raises(ValueError, match="one loss an example"):
        output_loss(functional.cross_entropy).value(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64))
