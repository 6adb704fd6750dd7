"""What has changed has another digest, and what has not has the same, in another process too."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from wafl.base.fingerprint import changed, code_of, model_digest, object_digest, tensors_digest
from wafl.data.examples import Examples
from wafl.promises.promise import digest_of

MODULE = '''
"""My model."""
import torch
import helpers_of_test
from torch import nn

SLOPE = 0.1


def squash(x):
    # a comment
    return torch.relu(x) * SLOPE


class Base(nn.Module):
    def last(self, x):
        return x.sum(1)


class Net(Base):
    def __init__(self, width=3, act=torch.relu):
        super().__init__()
        self.layer = nn.Linear(2, width)
        self.act = act
        self._scale = 2.0
        self.register_buffer("shift", torch.zeros(1), persistent=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x):
        return self.last(squash(self.act(self.layer(x)))) * self._scale + helpers_of_test.more(x)


def unused():
    return 1


def loss(outputs, y):
    return squash(outputs - y).sum(-1)
'''
HELPERS = "def more(x):\n    return x\n"


def load(folder: Path, text: str, helpers: str = HELPERS) -> Any:
    """The module as another process would import it."""
    for name, content in (("helpers_of_test", helpers), ("mine_of_test", text)):
        file = folder / f"{name}.py"
        file.write_text(content)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["mine_of_test"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("mine_of_test", "helpers_of_test"):
        monkeypatch.setitem(sys.modules, name, sys)  # removed afterwards
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # compiled code knows its source by second and size only
    return tmp_path


def digests(module: Any, **options: Any) -> tuple[str, str]:
    return model_digest(module.Net(**options)), object_digest(module.loss)


CHANGES = {
    "a function that the model calls": ("torch.relu(x) * SLOPE", "torch.tanh(x) * SLOPE", True, True),
    "a constant that the function reads": ("SLOPE = 0.1", "SLOPE = 0.2", True, True),
    "a method of its base class": ("x.sum(1)", "x.mean(1)", True, False),
    "its own code": ("self.act(self.layer(x))", "self.act(self.layer(-x))", True, False),
    "a private setting": ("self._scale = 2.0", "self._scale = 2.5", True, False),
    "a buffer that is not saved": ("torch.zeros(1)", "torch.ones(1)", True, False),
    "the loss": ("outputs - y", "y - outputs", False, True),
    "a comment and the layout": ("    # a comment\n", "\n    # other words\n\n", False, False),
    "what the model does not use": ("return 1", "return 2", False, False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_your_own_code_is_seen_where_it_counts(folder: Path, change: str) -> None:
    old, new, model_changes, loss_changes = CHANGES[change]
    assert MODULE.count(old) == 1
    before = digests(load(folder, MODULE))
    after = digests(load(folder, MODULE.replace(old, new)))
    assert (after[0] != before[0], after[1] != before[1]) == (model_changes, loss_changes)


def test_a_module_of_your_own_that_the_model_imports_counts(folder: Path) -> None:
    before = digests(load(folder, MODULE))
    after = digests(load(folder, MODULE, HELPERS.replace("return x", "return -x")))
    assert after[0] != before[0]


def test_what_a_model_is_made_with_counts(folder: Path) -> None:
    module = load(folder, MODULE)
    ways = [{}, {"width": 4}, {"act": torch.tanh}, {"act": partial(torch.softmax, dim=1)},
            {"act": partial(torch.softmax, dim=0)}]  # fmt: skip
    assert len({model_digest(module.Net(**way)) for way in ways}) == len(ways)


def test_layers_frozen_parameters_and_modes_count_but_not_the_start() -> None:
    def net(layer: nn.Module, bias: float = 0.0, frozen: bool = False) -> nn.Module:
        made = nn.Sequential(nn.Linear(2, 2), layer)
        nn.init.constant_(made[0].bias, bias)
        nn.init.zeros_(made[0].weight)
        return made.requires_grad_(not frozen)

    assert model_digest(net(nn.ReLU())) == model_digest(net(nn.ReLU(), 1.0)), "the start has its own digest"
    ways = [net(nn.ReLU()), net(nn.Tanh()), net(nn.Dropout(0.1)), net(nn.Dropout(0.2)), net(nn.ReLU()).eval(),
            net(nn.ReLU(), frozen=True), net(nn.ReLU(), 1.0, frozen=True)]  # fmt: skip
    assert len({model_digest(way) for way in ways}) == len(ways)


def test_libraries_count_by_name_alone() -> None:
    assert code_of([nn.Linear, np.mean, wafl.FedAvg, Path, sys]) == {}
    assert object_digest("cross_entropy") != object_digest("squared_error")


def test_only_what_differs_is_named() -> None:
    assert changed({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "4", "d": "5"}) == ["b", "c", "d"]


def test_each_byte_of_the_examples_counts_in_memory_and_on_disk_alike(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(9000, 3)).astype(np.float32), draw.integers(0, 3, 9000)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    pairs = [(slice(0, 5000), x), (slice(5000, 9000), x)]

    def clients(x: Any, y: Any = y) -> dict[str, str]:
        return wafl.Federation.from_arrays([(x[rows], y[rows]) for rows, _ in pairs]).fingerprint()

    whole = clients(x)
    assert clients(mapped) == whole
    seen = set[str]()
    for row in (0, 1, 4999, 5000, 8999):
        other = x.copy()
        other[row, 2] = np.nextafter(other[row, 2], np.float32(9))
        (what,) = changed(whole, clients(other))
        seen.add(what)
        flipped = y.copy()
        flipped[row] = (flipped[row] + 1) % 3
        assert changed(whole, clients(x, flipped)) == [what]
    assert seen <= {"training examples", "test examples"}


def test_whose_examples_they_are_counts() -> None:
    x, y = torch.arange(6.0).view(6, 1), torch.arange(6) % 2
    two, three = (Examples(x, y, torch.tensor(offsets)).digest() for offsets in ([0, 2, 6], [0, 3, 6]))
    assert two != three
    assert tensors_digest([x]) != tensors_digest([x.double()])


class Holder(nn.Module):
    """A model with an attribute that is neither a parameter nor a buffer."""

    def __init__(self, held: Any = None) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.held = held


HELD: dict[str, Callable[[float], Any]] = {
    "a tensor": lambda number: torch.tensor([1.0, number]),
    "a number as a tensor": torch.tensor,
    "an array": lambda number: np.array([1.0, number]),
    "a list of tensors": lambda number: [torch.ones(2), torch.tensor([1.0, number])],
    "a table of arrays": lambda number: {"a": {"b": (np.array([number]), "c")}},
    "an array of objects": lambda number: np.array([1, number, "x"], dtype=object),
    "half": lambda number: torch.tensor([1.0, number], dtype=torch.bfloat16),
    "complex": lambda number: torch.tensor([1.0j, number], dtype=torch.complex64).conj(),
    "sparse": lambda number: torch.tensor([1.0, number]).to_sparse(),
    "a transposed tensor": lambda number: torch.tensor([[1.0, number], [3.0, 4.0]]).T,
    "an empty tensor": lambda number: torch.zeros(0).expand(int(number), 0),
    "a parameter in a list": lambda number: [nn.Parameter(torch.tensor([number]))],
    "an argument of a function": lambda number: partial(torch.add, torch.tensor(number)),
}


@pytest.mark.parametrize("kind", HELD)
def test_tensors_and_arrays_that_are_plain_attributes_count(kind: str) -> None:
    same, again, other = (Holder(HELD[kind](number)) for number in (2.0, 2.0, 3.0))
    assert model_digest(same) == model_digest(again) != model_digest(other)
    assert digest_of(same) == digest_of(again) != digest_of(other)
    assert digest_of(same, 2) == digest_of(other, 2), "files of format 2 keep their digests"


def test_types_and_shapes_of_plain_arrays_count() -> None:
    ones = (torch.ones(4), torch.ones(2, 2), torch.ones(4).double(), torch.ones(4, dtype=torch.int32), np.ones(4), None)
    assert len({digest_of(Holder(each)) for each in ones}) == len(ones)


def test_models_without_plain_arrays_keep_their_digests() -> None:
    for plain in (Holder([1, 2.5, "three", None, (True, {"a": nn.ReLU})]), nn.BatchNorm2d(3), nn.Sequential(Holder())):
        assert model_digest(plain, arrays=False) == model_digest(plain)


def test_a_weight_that_torch_computes_from_a_parameter_is_no_setting() -> None:
    model = nn.utils.spectral_norm(nn.Linear(3, 2)).eval()
    before = digest_of(model)
    with torch.no_grad():
        model(torch.ones(1, 3))
    assert digest_of(model) == before


def test_a_tensor_that_your_own_code_reads_counts(folder: Path) -> None:
    text = MODULE.replace("SLOPE = 0.1", "SLOPE = torch.tensor(0.1)")
    before = digests(load(folder, text))
    assert before == digests(load(folder, text))
    after = digests(load(folder, text.replace("tensor(0.1)", "tensor(0.2)")))
    assert after[0] != before[0]
    assert after[1] != before[1]
