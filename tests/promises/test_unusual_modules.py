"""Unusual modules are proven as what they compute, or are estimates whose reason names the operation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import cache
from importlib import import_module

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

import wafl
from tests.promises.files import publish
from tests.theory.modules import attacked, clients
from wafl.promises.known import Known, read
from wafl.promises.promise import Promise, digest_of
from wafl.promises.verify import Verification, check
from wafl.tasks.losses import CrossEntropy
from wafl.tasks.structure.graph import NoGraphError
from wafl.tasks.structure.trace import trace
from wafl.theory.constants.layer_by_layer import plain_form

FLAG = [False]
MODULES: dict[str, tuple[type[nn.Module], str | None]] = {}
"""Each module, and why it has no proof; None if it has one."""


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)


def unusual(reason: str | None) -> Callable[[type[nn.Module]], type[nn.Module]]:
    def add(kind: type[nn.Module]) -> type[nn.Module]:
        MODULES[kind.__name__] = (kind, reason)
        return kind

    return add


@unusual("its layers compute something else")
class KnowsThatItIsTraced(Two):
    def forward(self, x: Tensor) -> Tensor:
        scale = 1.0 if fx._symbolic_trace.is_fx_tracing() else 10.0
        return self.last(scale * self.first(x))


@unusual("its layers compute something else")
class LooksAtTheType(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.last((10.0 if type(x) is Tensor else 1.0) * self.first(x))


@unusual(None)
class AsksForATensor(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.last((10.0 if isinstance(x, Tensor) and torch.is_tensor(x) else 1.0) * self.first(x))


@unusual("it branches on the values, the size or the type of a tensor in `self`")
class BranchesOnValues(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x) if x.sum() > 1e6 else 10.0 * self.first(x))


@unusual("it branches on the values, the size or the type of a tensor in `self`")
class BranchesOnTheBatch(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x) if x.shape[0] == 1 else 10.0 * self.first(x))


@unusual("it branches on the values, the size or the type of a tensor in `self`")
class BranchesOnTheDtype(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x) if x.dtype == torch.float64 else 10.0 * self.first(x))


@unusual("it computes something else in float32 or in inference mode")
class BranchesOnTheDtypeOfItsWeights(Two):
    def forward(self, x: Tensor) -> Tensor:
        single = next(self.parameters()).dtype == torch.float32
        return self.last(10.0 * self.first(x) if single else self.first(x))


@unusual("it branches on the values, the size or the type of a tensor in `self`")
class CatchesErrors(Two):
    def forward(self, x: Tensor) -> Tensor:
        try:
            scale = 10.0 if x.sum() > -1e6 else 1.0
        except Exception:
            scale = 1.0
        return self.last(scale * self.first(x))


@unusual("it uses the values or the size of a tensor as numbers in `self`")
class CatchesNumbers(Two):
    def forward(self, x: Tensor) -> Tensor:
        with contextlib.suppress(Exception):
            return self.last((10.0 + 0.0 * float(x.sum())) * self.first(x))
        return self.last(self.first(x))


@unusual("it does not compute the same every time")
class LooksAtGradients(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.last((10.0 if torch.is_grad_enabled() else 1.0) * self.first(x))


@unusual("it computes something else in float32 or in inference mode")
class LooksForInference(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.last((10.0 if torch.is_inference_mode_enabled() else 1.0) * self.first(x))


@unusual("it uses autocast in `self.first`")
class UsesAutocast(Two):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.last(self.first(x))


class DrawsNumbers(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.linear(x, torch.rand_like(self.first.weight)))


@unusual("`mean` at `self.forward` has no proof")
class MixesExamples(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x - x.mean(0)))


@unusual("a value at `self.forward` is used again after it was overwritten")
class OverwritesItsInput(Two):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        g = functional.relu(h, inplace=True)
        return self.last(g + h)


@unusual("a value at `self.last` is used again after it was overwritten")
class OverwritesAView(Two):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        g = h.view(h.size(0), -1)
        g += 1.0
        return self.last(h)


@unusual(None)
class OverwritesWhatIsNotUsedAgain(Two):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        g = torch.tanh(h)
        h += g
        h = h.relu_()
        return self.last(h)


class ChangesItsWeights(Two):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.first.weight.mul_(1.5)
        return self.last(self.first(x))


@unusual(None)
class SharesALayer(Two):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = functional.relu(self.first(x))
        return self.last(x)


@unusual(None)
class HasBuffersForWeights(Two):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mixing", 3.0 * torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.relu(x @ self.mixing))


@unusual("it uses a tensor that is neither a parameter nor a buffer in `self`")
class HidesWeights(Two):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [3.0 * torch.randn(6, 6, dtype=torch.float64)]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.linear(x, self.hidden[0]))


@unusual(None)
class Nests(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Sequential(SharesALayer(), nn.Tanh()), nn.Linear(2, 2)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.inner:
            x = layer(x)
        return x


@unusual("`LayerNorm` at `self.inner.norm1` has no proof")
class Normalizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Two()
        self.inner.norm1 = nn.LayerNorm(6)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.last(self.inner.norm1(x))  # type: ignore[operator]


@unusual("`RNN` at `self.rnn` has no proof")
class Recurs(Two):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(6, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x[:, None] if x.ndim is None else x)
        return self.last(out)


@unusual("`sin` at `self.forward` has no proof")
class EndsWithAnotherOperation(Two):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.last(self.first(x)))


@unusual("its layers compute something else")
class HasAFlag(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.last((10.0 if FLAG[0] else 1.0) * self.first(x))


@pytest.fixture
def flag(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Global state that changes after tracing."""
    traced = plain_form

    def then(module: nn.Module) -> nn.Module:
        FLAG[0] = False
        result = traced(module)
        FLAG[0] = True
        return result

    monkeypatch.setattr(import_module("wafl.theory.constants.assumptions"), "plain_form", then)
    yield
    FLAG[0] = False


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search at a single gamma, far above the limit, and for no constants: no proof depends on gamma or on a search."""
    dual = import_module("wafl.theory.certificates.dual")
    monkeypatch.setattr(dual, "RUNG", 1.0)
    monkeypatch.setattr(dual, "_next", lambda *_: None)
    for name in ("largest_slope", "largest_curvature"):
        monkeypatch.setattr(import_module("wafl.theory.constants.estimates"), name, lambda *_: 100.0)


@cache
def harmless() -> Promise:
    """What is promised of a network whose outputs are all 0."""
    model = nn.Sequential(nn.Linear(6, 2)).double()
    for value in model.parameters():
        nn.init.zeros_(value)
    return publish(model, clients(), radii=[0.1])


def verified(promise: Promise, model: nn.Module, federation: wafl.Federation) -> Verification:
    """Check a false file: the numbers of a promise, with the digest of another model."""
    claim = replace(promise.parts.claim, model=digest_of(model))
    return check(Promise(replace(promise.parts, claim=claim), promise.facts), model, federation, None)


@pytest.mark.parametrize("name", MODULES)
def test_an_unusual_module_is_proven_as_it_computes_or_says_why_not(
    name: str, flag: None, request: pytest.FixtureRequest
) -> None:
    kind, reason = MODULES[name]
    if reason is not None:
        request.getfixturevalue("coarse")
    torch.manual_seed(0)
    model, federation = kind().double().eval(), clients()
    result = wafl.certify(model, federation, radii=[0.1], achieved=False)
    checked = verified(harmless(), model, federation)
    assert not checked.recomputed, "the numbers belong to another model"
    statuses = {line.name: line.status for line in checked.lines}
    if reason is None:
        assert result.proven
        x, y = (torch.cat([federation.train.of(index)[part] for index in range(2)]) for part in (0, 1))
        assert float(attacked(model, x.double(), y, 0.1, 2).mean()) <= result[0].value
        promise = publish(model, federation, radii=[0.1])
        honest = check(promise, model, federation, None)
        assert honest.recomputed
        assert "assuming that global state does not change" in honest.lines[0].why
        assert statuses["model"] == "recomputed"
        assert not checked.ok
        return
    assert not result.proven
    assert f"because {reason}" in str(result).splitlines()[0]
    if name == "HasAFlag":  # the flag keeps its value while the checker runs
        return
    assert statuses["model"] == "attested"
    (why,) = [line.why for line in checked.lines if line.name == "model"]
    assert reason.removeprefix("its layers compute ") in why
    assert all(line.status != "recomputed" for line in (*checked.lines, *checked.clients.values()))


def test_the_checker_reads_each_module_or_says_why_not() -> None:
    for kind, reason in MODULES.values():
        result = read(kind().double(), CrossEntropy())
        if reason is None or reason.startswith("its layers"):  # which only examples can tell
            assert isinstance(result, Known), kind
        else:
            assert result == reason


@pytest.mark.parametrize(
    ("kind", "reason"), [(DrawsNumbers, "it does not compute the same every time"), (ChangesItsWeights, "`mul_`")]
)
def test_a_module_that_changes_from_call_to_call_has_no_graph(kind: type[nn.Module], reason: str) -> None:
    with pytest.raises(NoGraphError, match=reason):
        trace(kind().double(), lambda _: True)


FLATTEN = Tensor.flatten
PATCHES = {
    "a layer": (nn.Linear, "forward", lambda self, x: 10.0 * functional.linear(x, self.weight, self.bias)),
    "an activation": (nn.ReLU, "forward", lambda self, x: 10.0 * functional.relu(x)),
    "a function": (functional, "relu", lambda x, inplace=False: 10.0 * x.clamp_min(0.0)),
    "a builtin": (functional, "linear", lambda x, weight, bias=None: 10.0 * (x @ weight.T)),
    "a method": (Tensor, "flatten", lambda x, *dims, **named: FLATTEN(x, *dims, **named)),
    "every call": (nn.Module, "__call__", lambda self, *given: 10.0 * self.forward(*given)),
}


def plain_layers(own: bool) -> tuple[nn.Module, nn.Module]:
    """Return a model of ordinary layers, inside a module if ``own``, and its last layer."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    return nn.Sequential(nn.Sequential(), layers) if own else layers, layers[3:]


@pytest.mark.parametrize("own", [False, True])
def test_layer_classes_as_they_are_have_a_proof(own: bool, coarse: None) -> None:
    for each in plain_layers(own):
        assert wafl.certify(each, clients(), radii=[0.1], achieved=False).proven


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", PATCHES)
def test_a_layer_class_whose_forward_was_patched_is_not_proven(
    name: str, own: bool, coarse: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, (model, last) = clients(), plain_layers(own)
    owner, attribute, patch = PATCHES[name]
    promise = harmless()
    monkeypatch.setattr(owner, attribute, patch)
    for each in (model, last) if name != "an activation" else (model,):
        result = wafl.certify(each, federation, radii=[0.1], achieved=False)
        assert not result.proven
        assert "was replaced" in str(result).splitlines()[0]
        assert not verified(promise, each, federation).recomputed


def test_an_instance_whose_forward_was_patched_is_not_proven(coarse: None) -> None:
    model = HasBuffersForWeights().double()
    assert wafl.certify(model, clients(), radii=[0.1], achieved=False).proven
    model.forward = lambda x: 10.0 * x[:, :2]  # type: ignore[method-assign]
    result = wafl.certify(model, clients(), radii=[0.1], achieved=False)
    assert not result.proven
    assert "`HasBuffersForWeights` at `self` has replaced methods or weights" in str(result)


@pytest.mark.parametrize("where", ["", "inner", "inner.0", "inner.0.0.first"])
def test_a_hook_anywhere_is_not_proven(where: str, coarse: None) -> None:
    model = Nests().double()
    model.get_submodule(where).register_forward_hook(lambda *_: None)
    result = wafl.certify(model, clients(), radii=[0.1], achieved=False)
    assert not result.proven
    assert "has hooks" in str(result)
