"""Bad input is refused before any work, with the given value and a remedy."""

import inspect
import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from wafl.base.options import Box, Choice, Count, EachRound, Range, Seed, options_of
from wafl.local import LOCAL_STEPS
from wafl.parts.schedule import Schedule
from wafl.servers import AGGREGATES, OPTIMIZERS
from wafl.train.privacy.mechanism import Privacy
from wafl.train.trust.admission import Tolerance
from wafl.train.trust.caps import Caps
from wafl.train.trust.faults import Faults

NAN, INF = math.nan, math.inf


def classes(shape: tuple[int, ...] = (4,), test_fraction: float = 0.25) -> wafl.Federation:
    rng = np.random.default_rng(0)
    pairs = [(rng.random((n, *shape), dtype=np.float32), np.arange(n) % 3) for n in (5, 9, 7)]
    return wafl.Federation.from_arrays(pairs, test_fraction=test_fraction)


def targets() -> wafl.Federation:
    rng = np.random.default_rng(0)
    pairs = [(rng.random((n, 4), dtype=np.float32), rng.random(n, dtype=np.float32)) for n in (5, 9, 7)]
    return wafl.Federation.from_arrays(pairs)


def images() -> wafl.Federation:
    return classes((1, 4, 4))


def call(function, grid: dict | None = None, **changes):
    """A valid call, with changes; the test fails as soon as a round ends."""

    def worked(moment):
        pytest.fail("a round was trained before the input was refused")

    clients = changes.pop("clients", None) or classes()
    model = changes.pop("model", None) or wafl.models.mlr(clients)
    arguments = {"rounds": 1, "local_steps": 1, "callbacks": [worked], **changes}
    method = arguments.pop("method", wafl.WAFL(gamma=1.0))
    return function(model, clients, method, *([grid] if grid is not None else []), **arguments)


def test_the_call_that_the_tests_change_is_valid_itself():
    rounds = []
    call(wafl.fit, callbacks=[rounds.append])
    call(wafl.sweep, {"gamma": [1.0, 2.0]}, callbacks=[rounds.append])
    assert len(rounds) == 3


# ---------------------------------------------------------------- federations

GOOD = (np.zeros((3, 2)), np.array([0, 1, 2]))


def changed(x=None, y=None):
    return (GOOD[0] if x is None else x, GOOD[1] if y is None else y)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "there are no clients: pass at least one"),
        ([GOOD, changed(x=np.array([[0, 1], [NAN, 0], [0, 0]]))], "client 1 has NaN or infinity in x: clean or drop"),
        ([changed(y=np.array([0.0, NAN, 1.0]))], "client 0 has NaN or infinity in y: clean or drop"),
        ([GOOD, (np.zeros((0, 2)), np.zeros(0, int))], "client 1 is empty: leave it out"),
        ([GOOD, changed(x=np.zeros((4, 2)))], "client 1 has 4 examples but 3 labels"),
        ([GOOD, changed(x=np.zeros((3, 5)))], r"client 1 has examples of shape \(5,\).*client 0 of shape \(2,\)"),
        ([GOOD, changed(x=np.zeros((3, 2), "float32"))], r"client 1 .*float32, client 0 .*float64: all clients must"),
        ([GOOD, changed(y=np.zeros(3))], r"client 1 has labels .*float64, client 0 .*int64: all clients must agree"),
        ([changed(x=np.zeros(3))], r"client 0 has x of shape \(3,\) .*at least one feature"),
        ([changed(y=np.zeros((3, 2), int))], r"client 0 has labels of shape \(3, 2\): integer labels are one-dim"),
        ([changed(y=np.array([0, -1, 2]))], r"client 0 has labels from -1 to 2: they must lie in 0 \.\. 2"),
        ([changed(x=np.full((3, 2), "a"))], r"client 0 is not a pair of arrays \(x, y\): .*must hold numbers"),
        ([GOOD, (np.zeros((3, 2)),)], r"client 1 is not a pair of arrays \(x, y\)"),
        ([GOOD, 7], r"client 1 is not a pair of arrays \(x, y\)"),
    ],
)
def test_examples_that_cannot_be_clients_are_refused(pairs, message):
    with pytest.raises(ValueError, match=message):
        wafl.Federation.from_arrays(pairs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 2}, r"client 0 has labels from 0 to 2: they must lie in 0 \.\. 1"),
        ({"num_classes": 0}, "num_classes=0|must lie in"),
        ({"test_fraction": 1.0}, r"test_fraction=1.0 must lie in \[0, 1\)"),
        ({"names": ["a"]}, "1 client names for 2 clients: give each client a different name"),
        ({"bounds": (1.0, 0.0)}, r"bounds=\(1.0, 0.0\) must be \(low, high\) with low < high"),
        ({"bounds": (1.0, 2.0)}, r"client 0 has values from 0 to 0, outside bounds=\(1.0, 2.0\)"),
        ({"seed": 2**32}, r"seed=4294967296 must lie in 0 \.\. 2\*\*32 - 1"),
    ],
)
def test_options_of_a_federation_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        wafl.Federation.from_arrays([GOOD, GOOD], **options)


def test_a_number_of_classes_for_a_regression_is_refused():
    with pytest.raises(ValueError, match="num_classes is for integer labels"):
        wafl.Federation.from_arrays([changed(y=np.zeros(3))], num_classes=2)


# ------------------------------------------------------ methods and objectives


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wafl.WAFL(radius=0), "radius=0 must be positive and finite.*FedAvg"),
        (lambda: wafl.WAFL(label_cost=0), "label_cost=0 must be positive; inf keeps labels"),
        (lambda: wafl.WAFL(gamma=1.0, radius=1.0), "not both"),
        (lambda: wafl.WAFL(gamma=1.0, strict=True), "strict=True needs radius="),
        (lambda: wafl.WAFL(gamma=1.0, power=1, bounds=(0.0, INF)), "finite"),
        (lambda: wafl.PGD(epsilon=1, restarts=3), "restarts=3 without random_start=True"),
    ],
)
def test_options_of_methods_and_attacks_that_do_not_go_together_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


SLOTS = {**wafl.weights.RULES, **OPTIMIZERS, **AGGREGATES, **LOCAL_STEPS}
MAKERS = {
    **{name: (preset, preset.options, {}) for name, preset in wafl.METHODS.items()},
    **{name: (part, part, {}) for name, part in SLOTS.items()},
    **{kind.__name__: (kind, kind, {}) for kind in (Faults, Tolerance, Caps)},
    **{kind.__name__: (kind, kind, {"epsilon": 0.1}) for kind in (wafl.PGD, wafl.FGSM)},
    "WassersteinShift": (wafl.WassersteinShift, wafl.WassersteinShift, {"radius": 1.0}),
    "Schedule": (Schedule, Schedule, {"rounds": 1, "local_steps": 1}),
    "Privacy": (Privacy, Privacy, {"clip_norm": 1.0, "epsilon": 1.0}),
}
"""By name: what is called, the dataclass of its options, and what it cannot do without."""


def outside(limits) -> list:
    """Values on the wrong side of every limit."""
    limits = limits.range if isinstance(limits, EachRound) else limits
    if isinstance(limits, Range):
        low = limits.low if limits.low_open else limits.low - 1
        high = limits.high if limits.high_open else limits.high + 1
        return [NAN, "1", *(end for end in (low, high) if math.isfinite(end) or not limits.infinite)]
    if isinstance(limits, Count):
        return [limits.low - 1, limits.low + 0.5, True]
    if isinstance(limits, Seed):
        return [-1, 2**32]
    if isinstance(limits, Choice):
        return [-7]
    return [(0.0,), 1.0, (0.0, 0.5, 1.0), (0.0, NAN), (1.0, 0.0)] if isinstance(limits, Box) else []


@pytest.mark.parametrize("name", MAKERS)
def test_an_option_out_of_its_declared_range_is_refused_by_its_name_and_value(name):
    make, options, needed = MAKERS[name]
    for key, option in options_of(options).items():
        for value in outside(option.limits):
            with pytest.raises((ValueError, TypeError), match=re.escape(f"{key}={value!r}")):
                make(**{**needed, key: value})


# ------------------------------------------------------------------- schedules


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cohort": 4}, "cohort=4 is larger than the number of clients, 3: lower it"),
        (
            {"local_steps": None},
            r"give local_steps or local_epochs, exactly one of them \(local_steps=None, local_epochs=None",
        ),
        ({"local_epochs": 2}, r"give local_steps or local_epochs, exactly one of them \(local_steps=1, local_epochs=2"),
        ({"learning_rate": lambda t: -0.1}, "learning_rate=-0.1"),
        ({"method": wafl.AFL(weights_step=lambda t: -0.1)}, "=-0.1 .*must be positive"),
        ({"method": wafl.FedAdam(), "server_learning_rate": 0.5}, r"server_learning_rate=0.5 and server=.* leave one"),
        ({"chunk_size": 0}, "chunk_size=0 must be at least 1"),
        (
            {"method": wafl.AFL(), "local_steps": None, "local_epochs": 1},
            "pass local_steps=1 instead of local_epochs=1",
        ),
        ({"method": wafl.AFL(), "local_steps": 2}, "pass local_steps=1 instead of .*local_steps=2"),
        ({"method": wafl.AFL(), "cohort": 2}, "AFL asks all 3 clients each round: leave cohort=2 out; DRFA samples"),
        (
            {"client_weights": wafl.weights.fixed([0.5, 0.5])},
            "2 client weights for 3 clients: give one weight each",
        ),
    ],
)
def test_a_schedule_that_cannot_be_trained_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        call(wafl.fit, **changes)


@pytest.mark.parametrize("weights", [[0.2, 0.3, 0.5], "uniform"])
def test_plain_values_as_client_weights_point_to_the_rules(weights):
    with pytest.raises((TypeError, ValueError), match=r"weights\.(fixed|uniform)"):
        call(wafl.fit, client_weights=weights)
    with pytest.raises((TypeError, ValueError), match=r"weights\.(fixed|uniform)"):
        call(wafl.fit, method=wafl.FedAvg(client_weights=weights))


@pytest.mark.parametrize(
    ("grid", "changes", "message"),
    [
        ({}, {}, "has no combinations: give every name at least one value"),
        ({"gamma": []}, {}, "has no combinations: give every name at least one value"),
        ({"gamma": 1.0}, {}, "gamma"),
        ({"epsilon": [0.1]}, {}, "WAFL has no option 'epsilon'; it has: gamma"),
        ({"gamma": [1.0], "radius": [0.1]}, {}, "not both"),
        # The bad value comes last, in its own batch: the good ones must not be trained first.
        ({"gamma": [1.0, -1.0]}, {}, "gamma=-1.0 must be positive"),
        ({"norm": [2, 3]}, {}, "norm=3 must be 1, 2 or inf"),
        ({"bounds": [None, (0.0, 0.5)]}, {}, r"outside bounds=\(0.0, 0.5\)"),
        ({"power": [2, 1]}, {"clients": images, "model": wafl.models.cnn}, "power=1 without bounds is known only for"),
        ({"local_steps": [1, 2]}, {"method": wafl.AFL()}, "exactly one step per round: pass local_steps=1"),
    ],
)
def test_a_grid_that_cannot_be_trained_is_refused(grid, changes, message):
    if "clients" in changes:
        clients = changes["clients"]()
        changes = {"clients": clients, "model": changes["model"](clients)}
    with pytest.raises((TypeError, ValueError), match=message):
        call(wafl.sweep, grid, **changes)


def test_an_unknown_argument_of_a_sweep_is_named():
    with pytest.raises(TypeError, match=r"sweep has no option 'roundz'.*rounds"):
        call(wafl.sweep, {"gamma": [1.0]}, roundz=3)


@pytest.mark.parametrize(
    ("typo", "message"),
    [
        (lambda: wafl.load_dataset("digits", data="."), "load_dataset has no option 'data': did you mean 'data_dir'"),
        (lambda: wafl.load_dataset("digits").partition(num_client=4), "partition has no option 'num_client'.*clients'"),
        (lambda: classes().hold_out(0.5, sed=1), "hold_out has no option 'sed': did you mean 'seed'"),
        (lambda: wafl.Federation.from_arrays([], boundss=(0, 1)), "Federation has no option 'boundss'.*'bounds'"),
        (lambda: wafl.PGD(eps=0.1), "PGD has no option 'eps': did you mean 'epsilon'"),
        (lambda: wafl.evaluate(None, None, attacks=[]), "evaluate has no option 'attacks': did you mean 'attack'"),
        (lambda: wafl.certify(None, None, radius=0.1), "certify has no option 'radius': did you mean 'radii'"),
        (lambda: wafl.next_client(None, None, None, radii=[1]), "next_client has no option 'radii'.*'radius'"),
        (lambda: wafl.prediction_sets(None, None, cover=0.9), "prediction_sets has no option 'cover'.*'coverage'"),
    ],
)
def test_an_unknown_option_is_answered_with_the_closest_one(typo, message):
    with pytest.raises(TypeError, match=message):
        typo()


def test_fit_and_sweep_share_their_options():
    fit, sweep = (inspect.signature(function).parameters for function in (wafl.fit, wafl.sweep))
    assert list(sweep) == ["model", "clients", "method", "grid", *list(fit)[3:]]
    differ = [name for name, option in fit.items() if str(option) != str(sweep[name])]
    assert differ == ["check_optimum"], "which would take longer than many sweeps"
    assert sweep["check_optimum"].default is False


# ------------------------------------------------------------ models and losses


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x), x


def mean_loss(outputs, y):
    return nn.functional.cross_entropy(outputs, y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), r"BatchNorm1d at '1' .*GroupNorm or torch\.nn\.LayerNorm"),
        (
            nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)),
            "BatchNorm1d at '0' mixes .*Group",
        ),
        (nn.Linear(7, 3), r"the model does not take examples of shape \(4,\)"),
        (nn.Linear(4, 2), "the model has 2 outputs for 3 classes: give it one per class"),
        (nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), "the model gives an output of shape|does not take"),
        (nn.Sequential(nn.Linear(4, 3), nn.Unflatten(1, (3, 1))), r"output of shape \(3, 1\) .*must give one vector"),
        (Pair(), "does not take examples .*tuple"),
        (nn.Flatten(), "Flatten has no trainable parameters"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_with_a_remedy(model, message):
    with pytest.raises(ValueError, match=message):
        call(wafl.fit, model=model, method=wafl.FedAvg())


@pytest.mark.parametrize("model", [nn.Linear(64, 10), nn.Sequential(nn.Linear(64, 10))])
def test_a_linear_model_of_images_must_flatten_them(model):
    clients = wafl.load_dataset("digits").partition(num_clients=4, iid=True)
    with pytest.raises(ValueError, match=r"does not take .*takes 64 numbers: put torch\.nn\.Flatten\(\) before it"):
        wafl.fit(model, clients, wafl.FedAvg(), rounds=1, local_steps=1)


def test_layers_without_hidden_state_are_accepted():
    model = nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Dropout(0.3), nn.LayerNorm(6), nn.Linear(6, 3))
    call(wafl.fit, model=model, method=wafl.FedAvg(), callbacks=())


def test_a_cnn_for_examples_that_are_not_images_is_refused():
    with pytest.raises(ValueError, match=r"cnn needs images .*not \(4,\): use mlr"):
        wafl.models.cnn(classes())


@pytest.mark.parametrize(
    ("clients", "loss", "message"),
    [
        (classes, "hinge", "unknown loss 'hinge': use one of cross_entropy, squared_error, margin, or"),
        (
            classes,
            "squared_error",
            r"'squared_error' needs floating-point targets.* got 3 outputs, 1 targets of .*int64",
        ),
        (targets, "cross_entropy", "'cross_entropy' needs integer labels.*use loss='squared_error'"),
        (classes, mean_loss, r"loss mean_loss returned shape \(\) .*one loss per example.*reduction='none'"),
        (classes, lambda outputs, y: outputs, "one loss per example"),
    ],
)
@pytest.mark.parametrize("model", [None, "deep"])
def test_a_loss_that_does_not_fit_the_labels_is_refused(clients, loss, message, model):
    clients = clients()
    outputs = clients.num_classes or 1
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, outputs)) if model else None
    with pytest.raises(ValueError, match=message):
        call(wafl.fit, model=net, clients=clients, loss=loss, method=wafl.FedAvg())


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ({"1.weight": torch.zeros(3, 4)}, r"parameter names differ from the model's: 1\.bias"),
        ({"1.weight": torch.zeros(3, 4), "1.bias": torch.zeros(3), "extra": torch.zeros(1)}, "names differ.*extra"),
        ({"1.weight": torch.zeros(4, 3), "1.bias": torch.zeros(3)}, r"1\.weight has shape \(4, 3\), .*needs \(3, 4\)"),
        (
            {"1.weight": torch.full((3, 4), NAN), "1.bias": torch.zeros(3)},
            "starting parameters contain NaN or infinity",
        ),
    ],
)
def test_starting_parameters_that_do_not_fit_are_refused(init, message):
    with pytest.raises(ValueError, match=message):
        call(wafl.fit, init=init)


def test_cuda_is_refused_if_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for function, grid in ((wafl.fit, None), (wafl.sweep, {"gamma": [1.0]})):
        with pytest.raises(ValueError, match=r"device='cuda' needs CUDA.*use device='cpu'"):
            call(function, grid, device="cuda")


def test_an_unknown_device_is_named():
    with pytest.raises((RuntimeError, ValueError), match="abacus"):
        call(wafl.fit, device="abacus")


# -------------------------------------------------- objectives against a model


@pytest.mark.parametrize(
    "method",
    [
        wafl.WAFL(gamma=1.0, bounds=(0.0, 0.5)),
        wafl.WAFL(gamma=1.0, norm=INF, bounds=(0.0, 0.5)),
        wafl.FedPGM(bounds=(0.0, 0.5)),
        wafl.FedFGSM(bounds=(0.0, 0.5)),
    ],
)
def test_examples_outside_the_bounds_of_the_objective_are_refused(method):
    with pytest.raises(ValueError, match=r"lie in \[0\.\d+, 0\.9\d+\], outside bounds=\(0.0, 0.5\): widen them"):
        call(wafl.fit, method=method)


def test_bounds_may_be_given_as_a_list():
    run = call(wafl.fit, method=wafl.WAFL(gamma=1.0, bounds=[0.0, 1.0]), callbacks=())
    assert run.settings["method"]["objective"]["bounds"] == [0.0, 1.0]


def test_power_one_without_bounds_is_refused_except_for_a_linear_classifier():
    clients = images()
    message = r"power=1 without bounds .*give bounds=\(low, high\)"
    with pytest.raises(ValueError, match=message):
        call(wafl.fit, model=wafl.models.cnn(clients, channels=(2, 2)), clients=clients, method=wafl.WAFL(power=1))
    with pytest.raises(ValueError, match=message):
        call(wafl.fit, clients=targets(), loss="squared_error", method=wafl.WAFL(power=1))


def test_power_one_with_too_small_a_gamma_is_an_error_with_a_remedy():
    init = {"1.weight": torch.eye(3, 4), "1.bias": torch.zeros(3)}
    with pytest.raises(wafl.UnboundedError, match=r"round 0, client 0: .*power=1 and gamma=0.5 .*raise gamma"):
        call(wafl.fit, method=wafl.WAFL(power=1, gamma=0.5), init=init)


def test_a_label_cost_too_small_for_a_regression_or_its_loss_is_refused():
    with pytest.raises(ValueError, match=r"gamma \* label_cost = 0.5 must exceed 1.*raise label_cost"):
        call(wafl.fit, clients=targets(), loss="squared_error", method=wafl.WAFL(gamma=1.0, label_cost=0.5))
    with pytest.raises(ValueError, match="label_cost needs classes or loss='squared_error'"):
        call(
            wafl.fit,
            clients=targets(),
            loss=lambda outputs, y: (outputs[:, 0] - y).abs(),
            method=wafl.WAFL(gamma=1.0, label_cost=2.0),
        )


def test_regression_data_may_have_another_precision_than_the_model():
    """Numpy's arrays are float64, and torch's models float32."""
    rng = np.random.default_rng(0)
    clients = wafl.Federation.from_arrays([(rng.random((5, 4)), rng.random(5))] * 2)
    for method in (wafl.FedAvg(), wafl.WAFL(gamma=5.0), wafl.WAFL(gamma=5.0, label_cost=2.0), wafl.FedPGM()):
        call(wafl.fit, clients=clients, method=method, loss="squared_error", callbacks=())


# ------------------------------------------------------------- NaN and infinity


class Broken(Pair):
    def forward(self, x):
        return self.layer(x) * NAN


def test_a_model_that_predicts_nan_is_not_blamed_on_the_learning_rate():
    with pytest.raises((ValueError, wafl.DivergedError)) as caught:
        call(wafl.fit, model=Broken(), method=wafl.FedAvg())
    assert "NaN" in str(caught.value) or "not finite" in str(caught.value)
    assert "learning_rate" not in str(caught.value), "no step was taken yet"


def test_an_update_that_overflows_is_an_error_and_not_a_model():
    with pytest.raises(wafl.DivergedError, match=r"round 0, client 0: .*learning_rate=1e\+300 is likely too large"):
        call(wafl.fit, method=wafl.FedAvg(), learning_rate=1e300)


# ------------------------------------------------------------------- evaluation


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attacked": 1.5}, "attacked=1.5 is a share of the clients"),
        ({"seed": -1}, r"seed=-1 must lie in 0 \.\. 2\*\*32 - 1"),
        ({"loss": "hinge"}, "unknown loss 'hinge'"),
        ({"loss": mean_loss}, "one loss per example"),
    ],
)
def test_an_evaluation_with_options_out_of_range_is_refused(options, message):
    clients = classes()
    with pytest.raises(ValueError, match=message):
        wafl.evaluate(wafl.models.mlr(clients), clients, attack=wafl.FGSM(epsilon=0.1), **options)


def test_an_evaluation_without_test_examples_is_refused():
    clients = classes(test_fraction=0)
    with pytest.raises(ValueError, match=r"no client has test examples: .*test_fraction > 0"):
        wafl.evaluate(wafl.models.mlr(clients), clients)


@pytest.mark.parametrize(
    ("clients", "model", "message"),
    [
        (targets, nn.Linear(4, 1), "squared_error"),
        (classes, nn.Linear(7, 3), r"does not take examples of shape \(4,\)"),
        (classes, nn.Linear(4, 2), "2 outputs for 3 classes"),
        (classes, Broken(), "NaN|not finite"),
    ],
)
def test_an_evaluation_of_a_model_that_does_not_fit_the_data_is_refused(clients, model, message):
    with pytest.raises((ValueError, wafl.DivergedError), match=message):
        wafl.evaluate(model, clients())


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(2, 4), torch.zeros(3, dtype=torch.int64), "2 examples and 3 labels"),
        (torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), "0 examples and 0 labels: .*at least one"),
        (torch.full((1, 4), NAN), torch.tensor([0]), "x holds NaN or infinity"),
        (torch.zeros(1, 4), torch.tensor([3]), "label"),
    ],
)
def test_a_robust_loss_of_unusable_examples_is_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        wafl.robust_loss(nn.Linear(4, 3), x, y, gamma=1.0)
