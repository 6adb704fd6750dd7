"""Losses against torch, their curvature against Hessians, and your own losses against the built-in ones."""

import math
import types
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import wafl
from tests.oracles import objective as oracles
from wafl.tasks.losses import CrossEntropy, CustomLoss, MarginLoss, OutputLoss, SquaredError, output_loss

LOSSES = {"cross_entropy": CrossEntropy(), "margin": MarginLoss(0.7, 0.4), "squared_error": SquaredError()}
TORCH = {
    "cross_entropy": lambda s, y: functional.cross_entropy(s.flatten(0, -2), y.flatten(), reduction="none"),
    "margin": lambda s, y: (
        0.4
        * functional.cross_entropy(
            ((s - 0.7 * functional.one_hot(y, s.shape[-1]).to(s)) / 0.4).flatten(0, -2), y.flatten(), reduction="none"
        )
    ),
    "squared_error": lambda s, y: (s - (y if y.ndim == s.ndim else y[..., None])).pow(2).sum(-1).flatten(),
}


def outputs_and_labels(name, seed, lead, outputs):
    rng = np.random.default_rng(seed)
    s = torch.from_numpy(5.0 * rng.normal(size=(*lead, outputs)))
    if name != "squared_error":
        return s, torch.from_numpy(rng.integers(outputs, size=lead))
    return s, torch.from_numpy(rng.normal(size=(*lead, outputs) if outputs > 1 else lead))


@oracles.quick
@given(
    st.sampled_from(sorted(LOSSES)),
    st.integers(0, 10**6),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_value_and_gradient_agree_with_torch(name, seed, lead, outputs):
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


def test_the_margin_loss_bends_most_where_its_offset_is_used_up():
    weight, loss, y = torch.tensor([[1.0], [-1.0]]).double(), MarginLoss(0.7, 0.4), torch.tensor([0])
    hessian = torch.autograd.functional.hessian(
        lambda x: loss.value((weight @ x)[None], y).sum(), torch.tensor([0.35], dtype=torch.float64)
    )
    assert float(loss.curvature(weight[None])[0]) == pytest.approx(float(hessian))


def test_output_loss_takes_a_name_or_a_function():
    assert output_loss("cross_entropy") == CrossEntropy()
    assert output_loss("squared_error") == SquaredError()
    assert output_loss(torch.nn.MSELoss(reduction="none")).name == "MSELoss"
    with pytest.raises(ValueError, match="unknown loss 'hinge': use one of cross_entropy, squared_error"):
        output_loss("hinge")


# ---------------------------------------------------------------- your own loss object


class OwnCrossEntropy(OutputLoss):
    """The cross-entropy written again, with every fact about it stated; no subclass of the library's."""

    labels = "classes"
    convex = True
    logistic = True
    name = "cross_entropy"

    def value(self, outputs, y):
        return -outputs.mT.log_softmax(-2).gather(-2, y[..., None, :]).squeeze(-2)

    def probabilities(self, outputs):
        return outputs.mT.softmax(-2).mT

    def gradient(self, outputs, y):
        one = torch.ones_like(y, dtype=outputs.dtype)[..., None]
        return self.probabilities(outputs).scatter_add_(-1, y[..., None], -one)

    def slopes(self, weight, norm=2):
        return CrossEntropy().slopes(weight, norm)

    def curvature(self, weight, norm=2):
        return self.slopes(weight, norm).amax(-1).square() / 4.0


class OwnSquaredError(OutputLoss):
    """``a ||s - y||^2``, written again."""

    labels = "targets"
    convex = True

    def __init__(self, factor=1.0):
        self.quadratic = factor

    def value(self, outputs, y):
        return self.quadratic * (outputs - y.view_as(outputs)).square().sum(-1)

    def gradient(self, outputs, y):
        return self.quadratic * (2.0 * (outputs - y.view_as(outputs)))

    def curvature(self, weight, norm=2):
        return self.quadratic * SquaredError().curvature(weight, norm)


class OnlyAValue(OutputLoss):
    """Nothing is known about it beyond its values."""

    def value(self, outputs, y):
        return TORCH["cross_entropy"](outputs, y).view(y.shape)


def classes_and_targets():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3, 20, 4)).astype(np.float32)
    labels = rng.integers(3, size=(3, 20))
    targets = x @ np.array([1.0, -1.0, 0.5, 2.0], dtype=np.float32) + rng.normal(size=(3, 20)).astype(np.float32)
    return tuple(
        wafl.Federation.from_arrays(list(zip(x, y, strict=True)), test_fraction=0.2, seed=0) for y in (labels, targets)
    )


CLASSES, TARGETS = classes_and_targets()
WORK = {"rounds": 2, "local_epochs": 1, "batch_size": 8, "learning_rate": 0.05}


def trained(clients, model, method, loss):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wafl.ConcavityWarning)
        run = wafl.fit(model, clients, method, loss=loss, **WORK)
    return torch.cat([value.flatten() for value in run.params.values()]), run.history.column("loss")


def same_training(clients, model, method, one, other):
    ours, theirs = (trained(clients, model, method, loss) for loss in (one, other))
    return torch.equal(ours[0], theirs[0]) and ours[1] == theirs[1]


def random_model(clients):
    torch.manual_seed(0)
    return torch.nn.Linear(4, clients.num_classes or 1)


def small_network(clients):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, clients.num_classes))


@pytest.mark.parametrize(
    "method",
    [
        wafl.FedAvg(),
        wafl.WAFL(gamma=0.3),
        wafl.WAFL(gamma=0.1, restarts=1),
        wafl.WAFL(gamma=0.5, label_cost=0.5),
        wafl.WAFL(radius=0.5, strict=True),
        wafl.WAFL(gamma=0.5, norm=math.inf, steps=4),
        wafl.WAFL(gamma=0.5, bounds=(-4.0, 4.0), restarts=1),
        wafl.WAFL(gamma=5.0, power=1),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:no example moved:wafl.RadiusWarning")  # with power 1
def test_your_own_cross_entropy_trains_bit_for_bit_like_the_built_in(method):
    assert same_training(CLASSES, wafl.models.mlr(CLASSES), method, OwnCrossEntropy(), "cross_entropy")


def test_facts_about_a_loss_decide_its_path():
    """Without them the same loss gets another ascent, and nothing is proven about it."""
    model, x, y = random_model(CLASSES), *CLASSES.train.of(0)
    facts, none = (wafl.robust_loss(model, x, y, gamma=2.0, loss=loss) for loss in (OwnCrossEntropy(), OnlyAValue()))
    assert (facts.concave, none.concave) == (True, None)
    torch.testing.assert_close(none.value, facts.value, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="power=1 without bounds is known only for"):
        wafl.robust_loss(model, x, y, gamma=20.0, power=1, loss=OnlyAValue())


@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("params_radius", [None, 3.0])
@pytest.mark.parametrize("name", ["cross_entropy", "squared_error"])
def test_your_own_loss_has_the_built_in_constants(name, params_radius, norm):
    clients, own_loss = {
        "cross_entropy": (CLASSES, OwnCrossEntropy()),
        "squared_error": (TARGETS, OwnSquaredError()),
    }[name]
    known = [
        wafl.theory.constants(
            random_model(clients), clients, params_radius=params_radius, norm=norm, label_cost=2.0, loss=loss
        )
        for loss in (own_loss, name)
    ]
    assert known[0] == known[1]
    assert known[0].L_z.why.startswith(f"{known[1].L_z.why}; rests on `")
    assert {known[0].L_z.kind, known[0].L_zz.kind, known[0].max_loss.kind} == {"attested"}


def test_your_own_loss_has_the_built_in_certificates():
    """On a linear model and, by layers, on a network."""
    for model in (random_model(CLASSES), small_network(CLASSES)):
        certificates = [
            wafl.certify(model, CLASSES, radii=[0.2], achieved=False, loss=loss)
            for loss in (OwnCrossEntropy(), "cross_entropy")
        ]
        claimed, known = (result[0] for result in certificates)
        assert claimed.simple == known.simple
        assert claimed.value == known.value if isinstance(model, torch.nn.Linear) else claimed.value >= known.value
        assert [result.proven for result in certificates] == [False, True]


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_a_scaled_squared_error_is_that_many_times_the_built_in(factor):
    """``sup of a L - gamma d^2`` is a times ``sup of L - (gamma / a) d^2``, and the constants are a times as large."""
    model, x, y = random_model(TARGETS), *TARGETS.train.of(0)
    own_loss, base = OwnSquaredError(factor), "squared_error"
    scaled = wafl.robust_loss(model, x, y, gamma=8.0 * factor, label_cost=0.5, loss=own_loss)
    plain = wafl.robust_loss(model, x, y, gamma=8.0, label_cost=0.5, loss=base)
    torch.testing.assert_close(scaled.value, factor * plain.value)
    torch.testing.assert_close(scaled.x_adv, plain.x_adv)
    torch.testing.assert_close(scaled.y_adv, plain.y_adv)
    with pytest.raises(ValueError, match=rf"gamma \* label_cost = {0.9 * factor:g} must exceed {factor:g}"):
        wafl.robust_loss(model, x, y, gamma=0.9 * factor, label_cost=1.0, loss=own_loss)
    for params_radius in (None, 3.0):
        ours, theirs = (
            wafl.theory.constants(model, TARGETS, params_radius=params_radius, loss=loss) for loss in (own_loss, base)
        )
        for name in ("L_z", "L_zz", "L_theta", "L_theta_theta", "L_theta_z", "max_loss"):
            assert getattr(ours, name) == pytest.approx(factor * getattr(theirs, name), rel=1e-12)
        claim = f"`quadratic = {factor}` and `curvature()` of the loss OwnSquaredError"
        assert ours.L_zz.why == f"{factor:g} times {theirs.L_zz.why}; rests on {claim}"
        assert (ours.convex, ours.steep_everywhere) == (True, False)
    ball, reference = (
        wafl.calibrate(model, TARGETS, gammas=[gamma], loss=loss)
        for gamma, loss in ((10.0 * factor, own_loss), (10.0, base))
    )
    assert ball.radii == pytest.approx(reference.radii, rel=1e-6)
    assert ball.gamma_for(0.4) == pytest.approx(factor * reference.gamma_for(0.4), rel=1e-4)


def test_a_loss_with_nothing_but_values_is_a_function_of_outputs():
    model, method = wafl.models.mlr(CLASSES), wafl.WAFL(gamma=0.5)
    assert same_training(CLASSES, model, method, OnlyAValue(), TORCH["cross_entropy"])
    assert OnlyAValue().name == "OnlyAValue"
    assert CustomLoss(TORCH["cross_entropy"]).quadratic is None


def test_output_loss_takes_any_object_with_the_right_members():
    """It need not be a subclass."""
    members = ("labels", "convex", "logistic", "quadratic", "name", "probabilities")
    methods = ("value", "gradient", "slopes", "curvature")
    plain = types.SimpleNamespace(**{name: getattr(CrossEntropy(), name) for name in (*members, *methods)})
    assert output_loss(plain) is plain
    own_loss = OwnCrossEntropy()
    assert output_loss(own_loss) is own_loss
    del plain.slopes
    with pytest.raises(ValueError, match=r"is not a loss: use one of .*a subclass of wafl\.OutputLoss"):
        output_loss(plain)


@pytest.mark.parametrize(
    ("loss", "clients", "message"),
    [
        (OwnCrossEntropy(), TARGETS, "loss='cross_entropy' needs integer labels"),
        (OwnSquaredError(), CLASSES, "loss='OwnSquaredError' needs floating-point targets, one per output"),
    ],
    ids=["targets for classes", "classes for targets"],
)
def test_labels_that_do_not_suit_your_own_loss_are_refused(loss, clients, message):
    with pytest.raises(ValueError, match=message):
        wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), loss=loss, **WORK)
