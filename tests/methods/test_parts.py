"""Each named method has the parts that its paper says, and options reach the part that they belong to."""

import inspect

import pytest

import wafl
from wafl import objectives, weights
from wafl.methods.preset import Preset
from wafl.objectives import Wasserstein


@pytest.mark.parametrize("name", wafl.METHODS)
def test_a_named_method_has_the_parts_that_it_extends_and_otherwise_those_of_fedavg(name):
    preset, plain = wafl.METHODS[name], wafl.FedAvg()
    method = preset()
    assert method.name == name
    extended = {base.slot: base for base in preset.options.__bases__ if hasattr(base, "slot")}
    decided = set(extended) | set(preset.options().parts())
    for slot in ("objective", "client_weights", "server", "local"):
        part = getattr(method, slot)
        assert (part != getattr(plain, slot)) == (slot in decided), slot
        if slot in extended:
            assert type(getattr(part, "optimizer", part) if slot == "server" else part) is extended[slot]
    left_open = {"client_weights", "server", "local"} - decided
    assert left_open == {"client_weights", "server", "local"} & set(inspect.signature(preset).parameters)


def test_every_preset_is_listed_and_public():
    assert all(getattr(wafl, name) is preset for name, preset in wafl.METHODS.items())
    public = {name for name in wafl.__all__ if isinstance(getattr(wafl, name), Preset)}
    assert set(wafl.METHODS) == public


def test_the_default_steps_of_fedpgm_can_cross_its_whole_ball():
    scalars = wafl.FedPGM(epsilon=0.3, steps=40).objective.scalars()
    assert 40 * scalars["step_size"] >= 2 * 0.3


@pytest.mark.parametrize("make", [lambda: wafl.WAFL().objective, objectives.wasserstein, Wasserstein])
def test_without_gamma_and_radius_gamma_is_that_of_the_paper(make):
    assert (make().gamma, make().radius) == (0.5, None)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        (wafl.WAFL(gamma=1.0), {"gamma": 2.0, "steps": 4}),
        (wafl.FedPGM(), {"epsilon": 0.9, "norm": 2}),
        (wafl.FedFGSM(), {"epsilon": 0.9}),
        (wafl.FedRobust(), {"penalty": 9.0}),
    ],
)
def test_with_options_changes_only_what_it_is_told(method, changes):
    changed = method.with_options(**changes)
    assert {name: getattr(changed.objective, name) for name in changes} == changes
    assert (changed.name, changed.client_weights) == (method.name, method.client_weights)
    back = changed.with_options(**{name: getattr(method.objective, name) for name in changes})
    assert back == method
    assert method.with_options() == method


def test_with_options_changes_the_step_of_learned_weights():
    assert wafl.AFL(weights_step=0.1).with_options(weights_step=0.7) == wafl.AFL(weights_step=0.7)
    both = wafl.WAFL(gamma=1.0, client_weights=weights.snapshot(0.1)).with_options(gamma=2.0, weights_step=0.7)
    assert both == wafl.WAFL(gamma=2.0, client_weights=weights.snapshot(0.7))


def test_with_options_replaces_a_radius_by_a_gamma_and_back():
    assert wafl.WAFL(radius=0.3).with_options(gamma=2.0).objective.radius is None
    assert wafl.WAFL(gamma=2.0).with_options(radius=0.3).objective.radius == 0.3


@pytest.mark.parametrize("name", wafl.METHODS)
def test_the_help_of_a_preset_lists_each_of_its_arguments_with_its_type_and_purpose(name):
    preset = wafl.METHODS[name]
    lines = inspect.getdoc(preset).splitlines()
    for argument, parameter in inspect.signature(preset).parameters.items():
        (line,) = [line for line in lines if line.startswith(f"    {argument}: ")]
        assert line.endswith(".")
        assert "Annotated" not in str(parameter)
        assert parameter.default is not inspect.Parameter.empty


def test_with_options_replaces_a_part_and_options_of_the_new_part_at_once():
    method = wafl.FedAvg().with_options(server=wafl.servers.adam(0.1), rate=0.5, local=wafl.local.prox(0.1), mu=0.2)
    assert method == wafl.FedAvg(server=wafl.servers.adam(0.5), local=wafl.local.prox(0.2))
    with pytest.raises(ValueError, match="FedAvg has no option 'beta1'; it has: rate, client_weights, server, local"):
        wafl.FedAvg(server=wafl.servers.adam(0.1)).with_options(server=wafl.servers.sgd(), beta1=0.5)


def test_the_step_of_learned_weights_is_named_as_the_user_names_it():
    for make in (wafl.AFL, wafl.DRFA):
        with pytest.raises(ValueError, match=r"^weights_step=-1 must be positive and finite"):
            make(weights_step=-1)
