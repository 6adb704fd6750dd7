"""What is done to raw bytes before a model sees them, and that it is done one batch at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import wafl
from wafl.data.examples import Examples
from wafl.data.preprocessing import Preprocessing, make_preprocessing, pixel_statistics

OPTIONS = {"rounds": 3, "local_steps": 3, "batch_size": 16, "learning_rate": 0.1}


def dataset(count: int = 200, seed: int = 0) -> wafl.Dataset:
    """Noise with brighter test images; pixel (0, 0) never varies, (0, 1) only in the test images."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 200, (count, 1, 4, 4))
    cut = count * 3 // 4
    x[cut:] += 50
    x[:, 0, 0, 0] = 93
    x[:cut, 0, 0, 1] = 17
    x = torch.from_numpy(x).to(torch.uint8)
    y = torch.from_numpy(rng.integers(0, 3, count))
    return wafl.Dataset("noise", x[:cut], y[:cut], x[cut:], y[cut:], 3)


def federation(preprocess: str, **options) -> wafl.Federation:
    return dataset().partition(4, iid=True, split="standard", preprocess=preprocess, seed=1, **options)


def statistics(raw: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    values = raw.numpy().astype(np.float64)
    mean = sum(values) / len(values)
    return mean, np.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


# ---------------------------------------------------------------- the numbers


def test_zscore_does_not_use_the_test_examples():
    """Other test images, same training images: the same preparation; pooled statistics do change."""
    plain = dataset()
    bright = wafl.Dataset("noise", plain.x_train, plain.y_train, 255 - plain.x_test, plain.y_test, 3)
    for name, alike in (("zscore", True), ("zscore_pooled", False)):
        one, other = (
            data.partition(4, iid=True, split="standard", preprocess=name, seed=1).train.x for data in (plain, bright)
        )
        assert torch.equal(one, other) is alike
    with_split = plain.partition(4, iid=True, preprocess="zscore", seed=1)
    mean, _ = statistics(with_split.train.raw)
    np.testing.assert_allclose(with_split.train.prepare.shift.numpy(), mean, rtol=1e-12)


def test_a_pixel_that_never_varies_is_only_centered():
    clients = federation("zscore")
    assert torch.equal(clients.train.x[:, 0, 0, 0], torch.zeros(150))
    assert torch.equal(clients.train.x[:, 0, 0, 1], torch.zeros(150))
    moved = clients.test.raw[:, 0, 0, 1].float() - 17.0
    assert torch.equal(clients.test.x[:, 0, 0, 1], moved)
    assert bool(torch.isfinite(clients.test.x).all())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=3), st.integers(1, 40), st.integers(0, 2**31))
def test_pixel_statistics_do_not_depend_on_the_chunk(sizes, chunk, seed):
    rng = np.random.default_rng(seed)
    packs = [torch.from_numpy(rng.integers(0, 256, (size, 2, 3)).astype(np.uint8)) for size in sizes]
    mean, deviation = pixel_statistics(packs, chunk)
    wanted = statistics(torch.cat(packs))
    np.testing.assert_allclose(mean.numpy(), wanted[0], atol=1e-9)
    np.testing.assert_allclose(deviation.numpy(), wanted[1], atol=1e-5)


def test_digits_are_scaled_by_their_own_maximum():
    clients = wafl.load_dataset("digits").partition(5, iid=True)
    assert (float(clients.train.x.min()), float(clients.train.x.max())) == (0.0, 1.0)
    assert int(clients.train.raw.max()) == 16
    assert clients.train.span() == (0.0, 1.0)
    assert wafl.load_dataset("digits").partition(5, iid=True, preprocess="symmetric").train.span() == (-1.0, 1.0)


def test_unit_asks_for_no_statistics_and_the_default_changes_nothing():
    nothing = torch.empty(0, 2)  # statistics of which would be an error
    unit = make_preprocessing("unit", 255, nothing, nothing)
    assert (unit.name, unit.unit, unit.bounds) == ("unit", "pixels in [0, 1]", (0.0, 1.0))
    raw = torch.rand(3, 2)
    assert torch.equal(Preprocessing()(raw, torch.float32), raw)


# ---------------------------------------------------------------- bytes stay bytes


def test_a_federation_stores_images_as_bytes():
    clients = federation("zscore")
    for pack, count in ((clients.train, 150), (clients.test, 50)):
        assert pack.raw.dtype == torch.uint8
        assert pack.raw.nbytes == count * 16
        assert pack.x.dtype == pack.dtype == torch.float32
        assert pack.rows(torch.tensor([[0, 3], [2, 2]]), torch.float64).dtype == torch.float64
    assert clients.train.to(torch.device("cpu")).raw.dtype == torch.uint8


@pytest.mark.parametrize("preprocess", ["unit", "symmetric", "zscore", "zscore_pooled"])
def test_preparing_rows_or_clients_equals_preparing_all_at_once(preprocess):
    clients = federation(preprocess)
    x = clients.train.x
    index = torch.tensor([[5, 0, 149], [7, 7, 80]])
    assert torch.equal(clients.train.rows(index, torch.float32), x[index])
    for client in range(4):
        rows = slice(*clients.train.offsets[client : client + 2].tolist())
        assert torch.equal(clients.train.of(client)[0], x[rows])
    assert clients.train.span() == (float(x.min()), float(x.max()))


def test_training_converts_one_batch_at_a_time(monkeypatch):
    """No call prepares more than the cohort's batches, except checks, which look at one part at a time."""
    clients = dataset(4000).partition(4, iid=True, preprocess="unit", test_fraction=0.1)
    asked: list[int] = []
    rows = Examples.rows

    def watched(self, index, dtype):
        asked.append(index.numel())
        return rows(self, index, dtype)

    def refused(self):
        raise AssertionError("all examples were converted at once")

    monkeypatch.setattr(Examples, "rows", watched)
    monkeypatch.setattr(Examples, "x", property(refused))
    wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), **OPTIONS)
    assert asked
    assert max(asked) <= 4 * 16


def as_floats(clients: wafl.Federation) -> wafl.Federation:
    packs = [Examples(pack.x, pack.y, pack.offsets) for pack in (clients.train, clients.test)]
    return wafl.Federation(*packs, clients.names, clients.unit, clients.bounds, clients.num_classes)


@pytest.mark.parametrize("preprocess", ["unit", "zscore"])
@pytest.mark.parametrize(
    "method", [wafl.FedAvg(), wafl.WAFL(gamma=2.0), wafl.FedPGM(epsilon=0.1), wafl.DRFA()], ids=lambda m: m.name
)
def test_training_on_bytes_equals_training_on_floats(preprocess, method):
    """Also if an objective moves the prepared examples."""
    clients = federation(preprocess)
    runs = [
        wafl.fit(wafl.models.mlr(data), data, method, cohort=3, seed=2, **OPTIONS)
        for data in (clients, as_floats(clients))
    ]
    for name, value in runs[0].params.items():
        torch.testing.assert_close(runs[1].params[name], value, atol=1e-6, rtol=0)
        assert float(value.abs().max()) > 1e-3, "nothing was learned"
    assert runs[0].history.column("loss") == pytest.approx(runs[1].history.column("loss"), abs=1e-6)
