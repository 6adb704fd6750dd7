"""What cannot be known of a module is not proven: its forward or its call replaced, hooks, copies of another one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wafl
from wafl.promises.known import known
from wafl.tasks.losses import CrossEntropy
from wafl.tasks.structure.sequence import is_plain
from wafl.tasks.structured import make_task

TENFOLD: dict[str, Callable[[nn.Module], nn.Module]] = {}
Way = Callable[[nn.Module], nn.Module]


def way(make: Way) -> Way:
    TENFOLD[make.__name__] = make
    return make


class Ten(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return 10.0 * value


@way
def a_forward_on_the_instance(layer: nn.Module) -> nn.Module:
    plain = layer.forward
    layer.forward = lambda x: 10.0 * plain(x)
    return layer


@way
def a_call_on_the_instance(layer: nn.Module) -> nn.Module:
    layer._call_impl = lambda x: 10.0 * type(layer).forward(layer, x)
    return layer


@way
def a_hook(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda module, inputs, output: 10.0 * output)
    return layer


@way
def a_hook_before(layer: nn.Module) -> nn.Module:
    layer.register_forward_pre_hook(lambda module, inputs: (10.0 * inputs[0],))
    return layer


@way
def a_forward_of_a_subclass(layer: nn.Module) -> nn.Module:
    kind = type(layer)
    layer.__class__ = type("Own", (kind,), {"forward": lambda self, x: 10.0 * kind.forward(self, x)})
    return layer


@way
def a_call_of_a_subclass(layer: nn.Module) -> nn.Module:
    kind = type(layer)
    layer.__class__ = type("Own", (kind,), {"__call__": lambda self, x: 10.0 * kind.forward(self, x)})
    return layer


@pytest.fixture(autouse=True)
def nothing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate is one whatever a search finds, and searching takes most of the time."""
    for name in ("largest_slope", "largest_curvature"):
        monkeypatch.setattr(import_module("wafl.theory.constants.estimates"), name, lambda *_: 1.0)


def a_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Identity(), nn.Linear(5, 3)).double()


def a_linear_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(4, 3)).double()


def changed(model: nn.Sequential, index: int | None, change: Way) -> nn.Module:
    if index is None:
        return change(model)
    model[index] = change(model[index])
    return model


def clients() -> wafl.Federation:
    pair = np.random.default_rng(0).normal(size=(6, 4)), np.arange(6) % 3
    return wafl.Federation.from_arrays([pair], test_fraction=0.0, num_classes=3)


POSITIONS = [
    *((a_network, index) for index in (None, 0, 1, 2, 3, 4)),
    *((a_linear_model, index) for index in (None, 0, 2)),
]


@pytest.mark.parametrize(("make", "index"), POSITIONS)
@pytest.mark.parametrize("name", sorted(TENFOLD.keys() - {"a_forward_of_a_subclass"}))
def test_a_module_that_was_changed_is_not_proven(
    name: str, make: Callable[[], nn.Sequential], index: int | None
) -> None:
    result = wafl.certify(changed(make(), index, TENFOLD[name]), clients(), radii=[1.0], power=1)
    assert not result.proven
    assert not result.simple_proven
    warning, header = str(result).splitlines()[:2]
    assert warning.startswith("Not proven: this model has no proof, because ")
    assert header.split() == ["radius", "achieved", "estimate", "simple", "gamma"]


@pytest.mark.parametrize(("make", "index"), POSITIONS)
def test_a_subclass_is_proven_as_what_its_forward_computes(
    make: Callable[[], nn.Sequential], index: int | None
) -> None:
    model = changed(make(), index, a_forward_of_a_subclass)
    result, plain = (wafl.certify(each, clients(), radii=[1.0], power=1) for each in (model, make()))
    ends = index in (None, len(make()) - 1)  # with a product instead of a linear layer
    assert result.proven is not ends
    if not ends:
        assert result.L_z >= 10.0 * float(plain.L_z) * (1.0 - 1e-12)


@pytest.mark.parametrize("make", [a_linear_model, a_network])
def test_a_weight_that_was_replaced_is_still_the_weight(make: Callable[[], nn.Sequential]) -> None:
    """A parameter that is set again comes after the bias, and formulas took the one for the other."""
    model, plain = make(), make()
    layer = model[-1]
    weight = layer.weight.detach().clone()
    del layer.weight
    layer.weight = nn.Parameter(weight)
    assert [name for name, _ in layer.named_parameters()] == ["bias", "weight"]
    task = make_task(model)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 6, 4)))
    torch.testing.assert_close(task.outputs(task.initial()[None], x)[0], plain(x[0]), rtol=1e-12, atol=1e-12)
    results = [wafl.certify(each, clients(), radii=[0.5], achieved=False) for each in (model, plain)]
    assert results[0].loss == pytest.approx(results[1].loss, rel=1e-12)
    assert results[0][0].value == pytest.approx(results[1][0].value, rel=0.02)


@pytest.mark.parametrize("make", [a_network, a_linear_model])
def test_the_same_modules_as_they_are_made_are_proven(make: Callable[[], nn.Sequential]) -> None:
    assert wafl.certify(make(), clients(), radii=[1.0], power=1).proven


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_parametrized_layer_counts_with_the_weights_that_it_computes(name: str) -> None:
    model, tenfold = a_linear_model(), a_linear_model()
    nn.utils.parametrize.register_parametrization(model[2], name, Ten())
    with torch.no_grad():
        getattr(tenfold[2], name).mul_(10.0)
    results = [wafl.certify(each, clients(), radii=[1.0], power=1) for each in (model, tenfold)]
    assert all(result.proven for result in results)
    assert results[0][0].value == results[1][0].value


def test_a_hook_of_every_module_is_a_hook() -> None:
    model = a_linear_model()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
    try:
        assert not is_plain(model, nn.Sequential)
    finally:
        handle.remove()
    assert is_plain(model, nn.Sequential)


def test_a_subclass_that_only_builds_its_parent_is_plain() -> None:
    class Own(nn.Sequential):
        """A docstring, a constructor, its own name."""

        classes = 3

        def __init__(self) -> None:
            super().__init__(nn.Linear(4, self.classes))

        def penalty(self) -> Tensor:
            return self[0].weight.square().sum()

    assert is_plain(Own(), nn.Sequential)
    assert is_plain(wafl.models.mlr(clients()), nn.Sequential)


@pytest.mark.parametrize("make", [a_network, a_linear_model])
@pytest.mark.parametrize(
    ("name", "on_the_instance"),
    [("__getstate__", False), *((name, here) for name in ("__deepcopy__", "cpu", "double") for here in (False, True))],
)
def test_a_model_that_makes_another_of_itself_is_not_proven(
    name: str, make: Callable[[], nn.Sequential], on_the_instance: bool
) -> None:
    """Everything is proven on a copy in float64."""
    harmless = make()

    def other(*given: Any) -> Any:
        return vars(copy.deepcopy(harmless)) if name == "__getstate__" else copy.deepcopy(harmless)

    sly = (nn.Sequential if on_the_instance else type("Own", (nn.Sequential,), {name: other}))(*make())
    if on_the_instance:
        object.__setattr__(sly, name, other)
    with torch.no_grad():
        sly[-1].weight *= 50.0
    assert known(sly, CrossEntropy()) is None
    with pytest.raises(wafl.PreconditionError, match="copies itself as another one"):
        wafl.certify(sly, clients(), radii=[1.0])


def test_a_copy_that_forgets_what_replaces_a_call_is_not_proven() -> None:
    class Forgetful(nn.Sequential):
        def __getstate__(self) -> dict[str, Any]:
            return {key: value for key, value in vars(self).items() if key != "forward"}

    model = Forgetful(*a_linear_model())
    assert known(model, CrossEntropy()) is not None
    model.forward = lambda x: 10.0 * nn.Sequential.forward(model, x)
    assert known(model, CrossEntropy()) is None
    with pytest.raises(wafl.PreconditionError, match="copies itself as another one"):
        wafl.certify(model, clients(), radii=[1.0])


def test_a_hook_of_every_module_is_one_of_a_single_layer() -> None:
    model = nn.Linear(4, 3)
    assert known(model, CrossEntropy()) is not None
    for register in ("register_module_forward_hook", "register_module_forward_pre_hook"):
        handle = getattr(torch.nn.modules.module, register)(lambda *given: None)
        try:
            assert known(model, CrossEntropy()) is None
        finally:
            handle.remove()


class Ignored(nn.Parameter):
    """A weight whose products are ten times as large far from the examples."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(function, types, args, kwargs or {})
        if function is not nn.functional.linear:
            return result
        far = args[0].norm(dim=-1, keepdim=True) > 100.0
        return torch.where(far, 10.0 * result.as_subclass(Tensor), result.as_subclass(Tensor))


@pytest.mark.parametrize("make", [a_linear_model, a_network])
def test_weights_of_a_subclass_are_not_proven(make: Callable[[], nn.Sequential]) -> None:
    model = make()
    model[-1].weight = Ignored(model[-1].weight.detach())
    result = wafl.certify(model, clients(), radii=[1.0], achieved=False)
    assert not result.certifies
    assert "has weights of a subclass of torch.Tensor" in result.reason
    assert known(model, CrossEntropy()) is None


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("make", [a_linear_model, a_network])
def test_gradients_that_a_hook_may_change_prove_nothing(make: Callable[[], nn.Sequential], everywhere: bool) -> None:
    def nothing(module: nn.Module, inputs: tuple[Tensor | None, ...], outputs: object) -> tuple[Tensor | None, ...]:
        return tuple(None if value is None else 0.0 * value for value in inputs)

    model = make()
    if everywhere:
        handle = nn.modules.module.register_module_full_backward_hook(nothing)
    else:
        handle = model[-1].register_full_backward_hook(nothing)
    try:
        result = wafl.certify(model, clients(), radii=[1e-3], achieved=False)
    finally:
        handle.remove()
    assert not result.certifies
    assert "has hooks" in result.reason


@pytest.mark.parametrize("make", [a_linear_model, a_network])
def test_hooks_that_change_what_is_loaded_change_no_certificate(make: Callable[[], nn.Sequential]) -> None:
    def smaller(state: dict[str, Tensor], prefix: str, *_: object) -> None:
        state.update({name: 1e-3 * value for name, value in state.items() if name.startswith(prefix)})

    model = make()
    model[-1]._register_load_state_dict_pre_hook(smaller)
    rows, plain = (wafl.certify(each, clients(), radii=[0.0, 0.5], achieved=False).rows for each in (model, make()))
    assert [row.certified for row in rows] == [row.certified for row in plain]
