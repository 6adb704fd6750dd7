"""Data sets as domains: one client per source, all images of one shape, a target that no client trained on."""

import numpy as np
import pytest
import torch
from scipy.ndimage import zoom

import wafl

SHAPES = {"mnist": (28, 28), "usps": (16, 16), "svhn": (32, 32, 3), "mnist-m": (32, 32, 3)}
COUNTS = {"mnist": (30, 12), "usps": (20, 8), "svhn": (16, 6), "mnist-m": (14, 10)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tiny files in the format of the cache; each domain has its own brightness."""
    path = tmp_path_factory.mktemp("data")
    for index, (name, shape) in enumerate(SHAPES.items()):
        rng = np.random.default_rng(index)
        arrays = {}
        for part, count in zip(("train", "test"), COUNTS[name], strict=True):
            # Smooth, so that a resized image can be told from its neighbors.
            coarse = rng.integers(40 * index, 40 * index + 120, (count, 4, 4, *shape[2:]))
            factors = (1, shape[0] / 4, shape[1] / 4, *[1] * len(shape[2:]))
            arrays[f"x_{part}"] = zoom(coarse.astype(float), factors, order=1).round().astype(np.uint8)
            arrays[f"y_{part}"] = (np.arange(count) % 10).astype(np.uint8)
        np.savez_compressed(path / f"{name}.npz", **arrays)
    return path


def raw_of(folder, name: str) -> dict[str, np.ndarray]:
    with np.load(folder / f"{name}.npz") as content:
        return dict(content)


def test_each_source_is_one_client_and_all_have_one_shape(folder):
    task = wafl.domains(["mnist", "svhn", "mnist-m"], target="usps", data_dir=folder)
    assert task.clients.names == ("mnist", "svhn", "mnist-m")
    assert task.clients.train.num_examples.tolist() == [30, 16, 14]
    assert task.clients.test.num_examples.tolist() == [12, 6, 10]
    assert task.target.names == ("usps",)
    assert (len(task.target.train.y), len(task.target.test.y)) == (20, 8)
    for clients in (task.clients, task.target):
        assert clients.input_shape == (3, 28, 28)
        assert clients.train.raw.dtype == clients.test.raw.dtype == torch.uint8
        assert (clients.unit, clients.bounds, clients.num_classes) == ("pixels in [0, 1]", (0.0, 1.0), 10)
        assert clients.left_out == 0


def test_each_source_keeps_its_split_its_order_and_its_labels(folder):
    sources = ["mnist", "usps", "svhn"]
    task = wafl.domains(sources, target="mnist-m", data_dir=folder)
    for index, name in enumerate(sources):
        raw = raw_of(folder, name)
        for pack, part in ((task.clients.train, "train"), (task.clients.test, "test")):
            x, y = pack.of(index)
            assert y.tolist() == raw[f"y_{part}"].tolist()
            # Resizing keeps an image's mean, whatever its neighbors are.
            means = raw[f"x_{part}"].reshape(len(y), -1).mean(1) / 255
            assert np.corrcoef(x.flatten(1).mean(1).numpy(), means)[0, 1] > 0.99
            np.testing.assert_allclose(x.flatten(1).mean(1).numpy(), means, atol=0.03)


def test_gray_images_of_the_right_size_are_copied_to_three_channels(folder):
    task = wafl.domains(["mnist", "svhn"], target="usps", data_dir=folder)
    x, _ = task.clients.train.of(0)
    wanted = raw_of(folder, "mnist")["x_train"] / 255.0
    for channel in range(3):
        np.testing.assert_allclose(x[:, channel].numpy(), wanted, atol=1e-6)


def test_resizing_is_bilinear(folder):
    """16 to 28 pixels: a weighted mean of the two nearest pixel centers on each axis."""
    task = wafl.domains(["mnist", "svhn"], target="usps", data_dir=folder)
    image = raw_of(folder, "usps")["x_train"][3].astype(float)
    places = np.clip((np.arange(28) + 0.5) * 16 / 28 - 0.5, 0, 15)
    low = np.floor(places).astype(int)
    high, way = np.minimum(low + 1, 15), places - np.floor(places)
    down = (1 - way)[:, None] * image[low] + way[:, None] * image[high]
    wanted = (1 - way) * down[:, low] + way * down[:, high]
    got = task.target.train.raw[3].numpy().astype(float)
    for channel in got:
        assert np.abs(channel - wanted).max() <= 1.0


def test_color_channels_are_not_mixed(folder):
    task = wafl.domains(["mnist", "svhn"], target="usps", data_dir=folder)
    x, _ = task.clients.train.of(1)
    raw = raw_of(folder, "svhn")["x_train"] / 255.0
    np.testing.assert_allclose(x.mean((0, 2, 3)).numpy(), raw.mean((0, 1, 2)), atol=0.01)
    for image, source in zip(x.numpy(), raw, strict=True):
        np.testing.assert_allclose(image.mean((1, 2)), source.mean((0, 1)), atol=0.03)
        assert np.abs(image[0] - image[1]).max() > 0.05


def test_the_target_is_prepared_with_the_statistics_of_the_sources(folder):
    task = wafl.domains(["mnist", "svhn"], target="mnist-m", data_dir=folder, preprocess="zscore")
    raw = task.clients.train.raw.numpy().astype(np.float64)
    mean, deviation = raw.mean(0), raw.std(0)
    assert (deviation > 0).all()
    for pack in (task.clients.train, task.clients.test, task.target.train, task.target.test):
        np.testing.assert_allclose(pack.x.numpy(), (pack.raw.numpy() - mean) / deviation, atol=1e-4, rtol=1e-4)
    assert abs(float(task.clients.train.x.mean())) < 1e-4
    assert float(task.target.train.x.mean()) > 0.5, "a brighter target stays brighter"
    assert task.target.unit == task.clients.unit
    assert task.target.bounds is None


def test_the_sources_do_not_depend_on_the_target(folder):
    one, other = (
        wafl.domains(["mnist", "svhn"], target=target, data_dir=folder, preprocess="zscore_pooled").clients
        for target in ("usps", "mnist-m")
    )
    assert torch.equal(one.train.x, other.train.x)


def test_limit_takes_the_first_examples_and_size_sets_the_shape(folder):
    task = wafl.domains(["mnist", "usps"], target="svhn", data_dir=folder, limit=7, size=20)
    assert task.clients.train.num_examples.tolist() == [7, 7]
    assert task.clients.test.num_examples.tolist() == [7, 7]
    assert (len(task.target.train.y), len(task.target.test.y)) == (7, 6)
    assert task.clients.input_shape == task.target.input_shape == (3, 20, 20)
    assert task.clients.train.of(1)[1].tolist() == list(range(7)), "in the order of the files"


def test_digits_are_scaled_to_the_same_bytes(folder):
    task = wafl.domains(["digits", "mnist"], target="usps", data_dir=folder, limit=200)
    x, _ = task.clients.train.of(0)
    digits = wafl.load_dataset("digits").x_train[:200].float() / 16
    assert float(x.mean()) == pytest.approx(float(digits.mean()), abs=0.01)


@pytest.mark.parametrize(
    ("sources", "target", "message"),
    [
        ([], "usps", r"sources=\[\] must be distinct data sets"),
        (["mnist", "mnist"], "usps", r"sources=\['mnist', 'mnist'\] must be distinct"),
        (["mnist", "usps"], "usps", "target='usps' must not be one of them"),
        (["mnist", "imagenet"], "usps", "unknown data set 'imagenet'"),
        (["mnist"], "imagenet", "unknown data set 'imagenet'"),
    ],
)
def test_sources_and_targets_that_cannot_be_used_are_refused(folder, sources, target, message):
    with pytest.raises(ValueError, match=message):
        wafl.domains(sources, target=target, data_dir=folder)


def test_data_sets_with_different_classes_are_refused(folder, tmp_path):
    for name in ("mnist", "usps"):
        (tmp_path / f"{name}.npz").write_bytes((folder / f"{name}.npz").read_bytes())
    images, labels = np.zeros((4, 28, 28), np.uint8), np.array([0, 30, 61, 5], np.uint8)
    np.savez(tmp_path / "femnist.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    with pytest.raises(ValueError, match="femnist has 62 classes, mnist 10"):
        wafl.domains(["mnist"], target="femnist", data_dir=tmp_path)
    with pytest.raises(ValueError, match="femnist has 62 classes, mnist 10"):
        wafl.domains(["mnist", "femnist"], target="usps", data_dir=tmp_path)
