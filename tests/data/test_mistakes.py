"""What is surely a mistake is refused, with the remedy, before any work; what may be meant is not."""

# pyright: reportArgumentType=false
# Arguments are wrong on purpose.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wafl

from_arrays = wafl.Federation.from_arrays
RNG = np.random.default_rng(0)
X = RNG.random((6, 4), dtype=np.float32)
Y = np.arange(6) % 3


def clients(**options: Any) -> wafl.Federation:
    return from_arrays([(X, Y), (X + 1, Y)], **options)


def images(dtype: str, top: float = 255, shape: tuple[int, ...] = (3, 4, 4)) -> np.ndarray:
    return (RNG.random((6, *shape)) * top).round().astype(dtype)


# ------------------------------------------------------------------- the labels


@pytest.mark.parametrize("labels", [[0, 2, 0, 2, 0, 2], [1, 2, 3, 1, 2, 3], [0, 10**12, 0, 1, 2, 0]])
def test_labels_that_skip_classes_are_refused_unless_their_number_is_stated(labels: list[int]) -> None:
    y, top = np.array(labels), max(labels)
    with pytest.raises(ValueError, match=rf"skip classes \(of 0 \.\. {top}, .*astype\(str\).*num_classes={top + 1}$"):
        from_arrays([(X, y), (X, y)])
    assert from_arrays([(X, y)], num_classes=top + 1).num_classes == top + 1
    assert from_arrays([(X, y.astype(str))]).classes == tuple(sorted({str(label) for label in labels}))


def test_a_class_that_only_one_client_has_is_not_skipped() -> None:
    assert from_arrays([(X, np.zeros(6, int)), (X, np.ones(6, int))]).num_classes == 2
    assert from_arrays([(X, np.zeros(6, int), X, np.ones(6, int))]).num_classes == 2


@pytest.mark.parametrize(
    ("options", "labels", "message"),
    [
        ({"classes": ["a", "b"]}, ["a", "c"] * 3, "client 0 has the label 'c', which is not in classes: a, b"),
        ({"classes": "ab"}, ["a", "b"] * 3, "classes='ab' must be a list of names"),
        ({"classes": ["a", "b"]}, Y, r"client 0 has labels from 0 to 2: they must lie in 0 \.\. 1"),
        ({"classes": ["a", "b"], "num_classes": 3}, Y, "num_classes=3, but classes has 2 names: leave one of them out"),
        ({"num_classes": 3}, ["a", "b"] * 3, r"num_classes=3 is for labels that are numbers: .*classes=\[...\]"),
        ({}, np.array(["a", None] * 3, dtype=object), "client 0 has the label None among text: drop examples"),
        ({}, np.eye(3, dtype=int)[Y], r"integer labels are one-dimensional; for one-hot labels, pass y.argmax\(1\)"),
    ],
)
def test_labels_that_do_not_fit_their_names_are_refused(options: dict[str, Any], labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_arrays([(X, labels)], **options)


def test_text_and_numbers_as_labels_do_not_mix() -> None:
    with pytest.raises(ValueError, match="client 1 has numbers as labels, client 0 text: all clients must agree"):
        from_arrays([(X, Y.astype(str)), (X, Y)])


def test_one_hot_floats_are_refused_for_classes_and_kept_for_a_regression() -> None:
    one_hot = from_arrays([(X, np.eye(3, dtype=np.float32)[Y])])
    with pytest.raises(ValueError, match=r"'cross_entropy' needs integer labels.*one-hot, so pass .*y.argmax\(1\)"):
        wafl.fit(wafl.models.mlr(one_hot), one_hot, wafl.FedAvg(), rounds=1, local_steps=1)
    wafl.fit(wafl.models.mlr(one_hot), one_hot, wafl.FedAvg(), rounds=1, local_steps=1, loss="squared_error")


# ------------------------------------------------------------------- the images


@pytest.mark.parametrize(
    ("x", "remedy"),
    [
        (images("uint8"), "raw pixels: pass preprocess='unit'"),
        (images("int64"), "raw pixels: divide them by 255"),
        (images("float32"), "raw pixels: divide them by 255, or give them as uint8"),
        (images("float32", 254) + 0.5, "raw pixels: divide them by 255, or give them as uint8"),
    ],
)
def test_raw_pixels_are_refused_unless_they_are_prepared_or_stated(x: np.ndarray, remedy: str) -> None:
    with pytest.raises(ValueError, match=rf"client 1 has images with values from .* to 2[\d.]+, which are {remedy}"):
        from_arrays([(np.zeros_like(x), Y), (x, Y)])
    assert from_arrays([(x, Y)], bounds=(0, 255)).bounds == (0.0, 255.0)
    assert from_arrays([(x.astype("uint8"), Y)], preprocess="unit").train.x.max() <= 1


NO_PIXELS = {
    "binary": images("float32", 1.0),
    "scaled": images("float32") / 255,
    "no colors": images("float32", 200, (5, 6, 6)) + 0.5,
    "negative": images("float32", 254) - 60,
    "a table": images("float32", 200, (48,)) + 0.5,
    "a series": images("int64", 200, (24, 2)),
    "a sensor": images("float32", 200, (24, 8)) + 0.5,
    "few levels": images("uint8", 16),
    "large": images("float32", 1000),
    "not an image": images("uint8", shape=(48,)),
}


@pytest.mark.parametrize("x", NO_PIXELS.values(), ids=NO_PIXELS)
def test_what_may_not_be_raw_pixels_is_taken_as_it_is(x: np.ndarray) -> None:
    assert torch.equal(from_arrays([(x, Y)], test_fraction=0).train.x, torch.from_numpy(x).float())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"preprocess": "unit"},
            r"'unit' is for images as bytes \(uint8, 0 .. 255\), but client 0 has float32",
        ),
        ({"preprocess": "unit", "bounds": (0, 1)}, r"bounds=\(0, 1\) follow from preprocess='unit': leave them out"),
        ({"test_fraction": "0.25"}, r"test_fraction='0.25' must be a number and lie in \[0, 1\)"),
        ({"num_classes": "3"}, "num_classes='3' must be a whole number"),
        ({"bounds": "01"}, "bounds='01' must be two numbers .*, not text"),
        ({"names": "ab"}, "names='ab' is one text: give a list"),
    ],
)
def test_options_that_do_not_fit_the_data_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clients(**options)


def test_float_images_that_a_data_set_would_divide_again_are_refused() -> None:
    x, y = torch.rand(6, 1, 4, 4), torch.arange(6)
    with pytest.raises(ValueError, match=r"x_train holds floats from .* divided by max_value=255: pass max_value=1"):
        wafl.Dataset("own", x, y, x, y, 6)
    with pytest.raises(ValueError, match=r"x_test holds values from -.*, outside 0 \.\. max_value=255"):
        wafl.Dataset("own", (255 * x).to(torch.uint8), y, 2 * x - 1.5, y, 6)
    with pytest.raises(TypeError, match=r"x_train is an array of shape \(6, 1, 4, 4\): give a tensor"):
        wafl.Dataset("own", x.numpy(), y, x, y, 6)
    wafl.Dataset("own", x, y, x, y, 6, max_value=1)


# ------------------------------------------------------------------ their order


def test_arrays_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match=r"x of shape \(6,\) and y of shape \(6, 4\), which look swapped: .*\(x, y\)"):
        from_arrays([(Y, X)])
    with pytest.raises(ValueError, match=r"look like \(x_train, x_test, y_train, y_test\): give \(x_train, y_tr"):
        from_arrays([(X, X[:2], Y, Y[:2])])
    with pytest.raises(ValueError, match=r"client 1 has own test data, unlike client 0: give .* or to none"):
        from_arrays([(X, Y), (X, Y, X, Y)])
    with pytest.raises(ValueError, match=r"test_fraction=0.5, but clients have test data of their own: leave it out"):
        from_arrays([(X, Y, X, Y)], test_fraction=0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": (X, Y)}, r"in a dict with a: pass from_arrays\(list\(d.values\(\)\), names=list\(d\)\)"),
        ("data", "the clients are 'data': pass a list with one pair"),
        (pandas.DataFrame({"a": [1.0]}), r"the clients are in a frame: use Federation.from_frame"),
        ([{"x": X, "y": Y}], r"^client 0 is not a pair of arrays \(x, y\): it is a dict with x, y; pass one pair"),
        ((X, Y), r"^client 0 is not a pair of arrays \(x, y\): it is an array of shape \(6, 4\); pass one pair"),
        ([(X, Y, X)], r"it is a tuple of 3 \(ndarray, ndarray, ndarray\)"),
        ([([[1.0], [1.0, 2.0]], [0, 1])], "client 0 is not a pair of arrays"),
    ],
)
def test_what_is_not_one_pair_per_client_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_arrays(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((X, Y), r"given an array of shape \(6, 4\) and an array of shape \(6,\): pass from_arrays\(\[\(x, y\)\]\)"),
        (([X, X], [Y, Y]), r"given a list of 2 .* and a list of 2 .*: .*from_arrays\(list\(zip\(xs, ys\)\)"),
        (([(X, Y)], 0.25), "and 0.25: .*options by name, such as test_fraction=0.25"),
    ],
)  # fmt: skip
def test_more_than_one_list_of_clients_is_refused(given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^from_arrays takes one list with all clients, but was .*{message}"):
        from_arrays(*given)


def test_more_than_one_list_of_data_sets_is_refused() -> None:
    data: Any = TensorDataset(torch.zeros(2, 1), torch.zeros(2))
    with pytest.raises(TypeError, match=r"^from_datasets takes one list .* a TensorDataset and a .*\(\[first, sec"):
        wafl.Federation.from_datasets(data, data)


MODEL = nn.Linear(4, 3)
GIVEN: dict[str, Any] = {"rounds": 1, "local_steps": 1}
PIXELS, LABELS = torch.zeros(8, 1, 4, 4, dtype=torch.uint8), torch.arange(8) % 2
DATASET = wafl.Dataset("own", PIXELS, LABELS, PIXELS, LABELS, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, r: wafl.fit(c, MODEL, wafl.FedAvg(), **GIVEN), r"swapped: call fit\(model, clients, method\)"),
        (lambda c, r: wafl.sweep(c, MODEL, wafl.FedAvg(), {"seed": [0]}, **GIVEN), r"swapped: call sweep\(model, cl"),
        (lambda c, r: wafl.evaluate(c, r), r"swapped: call evaluate\(model, clients\)"),
        (lambda c, r: wafl.certify(c, r, radii=[1.0]), r"swapped: call certify\(model, clients, radii=\[...\]\)"),
        (lambda c, r: wafl.fit("mlr", c, wafl.FedAvg(), **GIVEN), r"model is 'mlr': pass .*wafl.models.mlr\(clients"),
        (lambda c, r: wafl.fit(nn.Linear, c, wafl.FedAvg(), **GIVEN), r"model is the class Linear: .*Linear\(...\)"),
        (lambda c, r: wafl.fit(r, c, wafl.FedAvg(), **GIVEN), "model is a Run: .*init=run.params"),
        (lambda c, r: wafl.fit(MODEL, [(X, Y)], wafl.FedAvg(), **GIVEN), "clients is a list of 1.*from_arrays"),
        (lambda c, r: wafl.evaluate(r, [DataLoader(TensorDataset(c.train.x))]), "clients is a list.*from_datasets"),
        (lambda c, r: wafl.evaluate(r, DATASET), r"clients is a Dataset: .*partition\(...\)"),
        (lambda c, r: wafl.fit(MODEL, c, wafl.FedAvg(), init=r, **GIVEN), "init is a Run: .*init=run.params"),
        (lambda c, r: wafl.fit(MODEL, c, wafl.FedAvg(), faults={"dropout": 1}, **GIVEN), r"faults is a dict .*Faults"),
        (lambda c, r: wafl.fit(MODEL, c, wafl.FedAvg(), checkpoint="a", **GIVEN), "checkpoint is 'a': pass a"),
        (lambda c, r: wafl.sweep(MODEL, c, wafl.FedAvg(), [("seed", [0])], **GIVEN), "must be a dict of lists"),
        (lambda c, r: wafl.sweep(MODEL, c, wafl.WAFL(), {"norm": "12"}, **GIVEN), "at least one value, in a list"),
        (lambda c, r: wafl.load_dataset(3), "name is 3: give the name of a data set"),
        (lambda c, r: wafl.domains("mnist", "usps"), r"sources='mnist' is one text: .*\['mnist'\]"),
        (lambda c, r: wafl.weights.fixed({"a": 1}), "must be a list of numbers, one per client"),
        (lambda c, r: wafl.certify(r, c, radii="1"), r"radii='1' must be a list of numbers, such as \[1\]"),
        (lambda c, r: wafl.evaluate(r, c, attack=wafl.FGSM(epsilon=1), attacked="1"), "attacked='1' is a share"),
    ],
)  # fmt: skip
def test_arguments_that_are_something_else_are_refused_in_words(call: Callable[..., Any], message: str) -> None:
    it = clients()
    run = wafl.fit(MODEL, it, wafl.FedAvg(), rounds=1, local_steps=1)
    with pytest.raises((TypeError, ValueError), match=message):
        call(it, run)


@pytest.mark.parametrize("norm", ["2", "inf", "l2"])
def test_a_norm_as_text_is_refused_with_the_number_to_give(norm: str) -> None:
    it = clients()
    for call in (
        lambda: wafl.WAFL(norm=norm),
        lambda: wafl.PGD(epsilon=1.0, norm=norm),
        lambda: wafl.certify(MODEL, it, radii=[1.0], norm=norm),
        lambda: wafl.robust_loss(MODEL, X, Y, gamma=1.0, norm=norm),
    ):
        with pytest.raises(ValueError, match=f"norm='{norm}' must be .* inf: give a number, not text; .* math.inf"):
            call()


# -------------------------------------------------------------------- the model


class Probabilities(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.softmax(self.layer(x), dim=-1)


def uniform() -> nn.Module:
    """Outputs that sum to 1 without being probabilities."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    nn.init.zeros_(model[2].weight)
    nn.init.constant_(model[2].bias, 1 / 3)
    return model


def test_a_softmax_before_cross_entropy_is_refused_and_a_log_softmax_is_not() -> None:
    it = clients()
    for model in (nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)), Probabilities()):
        for call in (
            lambda model=model: wafl.fit(model, it, wafl.FedAvg(), rounds=1, local_steps=1),
            lambda model=model: wafl.evaluate(model, it),
        ):
            with pytest.raises(ValueError, match=r"outputs are probabilities.*remove the softmax at the end"):
                call()
    for model in (nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(-1)), uniform()):
        wafl.fit(model, it, wafl.FedAvg(), rounds=1, local_steps=1)
    log_loss = lambda outputs, y: -outputs.gather(-1, y[:, None])[:, 0].log()  # noqa: E731
    wafl.fit(Probabilities(), it, wafl.FedAvg(), rounds=1, local_steps=1, loss=log_loss)


# ---------------------------------------------------------- frames and data sets

FRAME = pandas.DataFrame({"who": list("aabb"), "age": [1.0, 2, 3, 4], "sex": list("mfmf"), "sick": [0, 1, 1, 0]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client": "whom"}, "client='whom' is not a column of the frame: did you mean 'who'?"),
        ({"target": "outcome"}, "target='outcome' is not a column of the frame: it has who, age, sex, sick"),
        ({}, r"column 'sex' holds text: encode it as numbers, .*features=\[...\]"),
        ({"features": "age"}, r"features='age' is one text: give a list of columns, features=\['age'\]"),
        ({"features": ["age", "sick"]}, "column 'sick' cannot be an input: it is the client or the target"),
        ({"features": ["age", "agee"]}, "features='agee' is not a column of the frame: it has who, age, sex, sick"),
        ({"features": []}, "at least one other"),
        ({"frame": FRAME.assign(age=[1.0, None, 3, 4])}, "column 'age' lacks 1 of 4 values: fill them in, or drop"),
        ({"frame": FRAME.assign(age=[1, float("inf"), 3, 4])}, "column 'age' has 1 infinite values: correct or drop"),
        ({"frame": FRAME.assign(who=["a", None, "b", "b"]), "features": ["age"]}, "column 'who' lacks 1 of 4 values"),
        ({"frame": FRAME.assign(sick=["n", "y", None, "n"]), "features": ["age"]}, "column 'sick' lacks 1 of 4 values"),
        ({"frame": pandas.concat([FRAME, FRAME], axis=1)}, "the frame has the column 'age' twice: rename"),
        ({"frame": [1, 2]}, "a list is not a data frame of pandas or polars"),
    ],
)
def test_a_frame_that_cannot_be_clients_is_refused(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"frame": FRAME, "client": "who", "target": "sick", **options}
    with pytest.raises(ValueError, match=message):
        wafl.Federation.from_frame(given.pop("frame"), **given)


def test_several_targets_of_a_frame_are_a_regression() -> None:
    it = wafl.Federation.from_frame(FRAME.assign(b=0.5), client="who", target=["age", "b"], features=["sick"])
    assert it.num_classes is None
    assert it.num_outputs == 2


def pairs(*items: Any) -> Any:
    """A data set of these examples."""
    return type(
        "Own", (torch.utils.data.Dataset,), {"__len__": lambda _: len(items), "__getitem__": lambda _, i: items[i]}
    )()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (TensorDataset(torch.zeros(2, 1), torch.zeros(2)), "datasets is a TensorDataset: pass a list with one"),
        ({"a": pairs((1, 2))}, "datasets is a dict: pass a list with one data set per client"),
        (type("Parts", (), {"load_partition": None})(), r"datasets is a Parts: .*, \[it.load_partition\(i\) for i"),
        ([7], "client 0 is a int: it must be a data set, or a pair"),
        ([{"train": pairs((1, 2)), "validation": pairs((1, 2))}], "client 0 has the splits train, validation: "),
        ([pairs()], "client 0: the data set is empty"),
        ([pairs((X[0], 0, 1))], r"client 0: an example has 3 parts: it must be \(x, y\)"),
        ([pairs(X[0])], r"client 0: an example is a ndarray: it must be \(x, y\)"),
        ([pairs((X[0], 0), (X[0, :2], 1))], r"shapes, \(2,\) and \(4,\): bring them to one size with a transform"),
        ([pairs({"a": X[0], "b": 0})], r"no column is called label, .*target=... \(a, b\)"),
        ([pairs({"label": 0})], r"there is no column of inputs, only label: name them, features=\[...\]"),
    ],
)  # fmt: skip
def test_a_data_set_that_cannot_be_a_client_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wafl.Federation.from_datasets(given)


def test_a_loader_that_draws_with_replacement_is_refused() -> None:
    data = TensorDataset(torch.zeros(4, 1), torch.zeros(4))
    sampler = torch.utils.data.RandomSampler(data, replacement=True)
    with pytest.raises(ValueError, match="draws with replacement: pass its data set"):
        wafl.Federation.from_datasets([DataLoader(data, sampler=sampler)])
