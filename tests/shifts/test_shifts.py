"""Natural shifts: what holds for all of them, and each against its definition, SciPy or its distribution."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage, stats

from tests.oracles.objective import quick
from wafl import shifts
from wafl.shifts import values
from wafl.shifts.values import poisson_quantile

BOUNDS = (0.0, 1.0)
OF_VALUES = ("affine", "gaussian_noise", "shot_noise", "inversion")
OF_IMAGES = ("rotation", "translation", "blur", "occlusion")
MOVING = (*OF_VALUES, *OF_IMAGES)
RANDOM = ("affine", "gaussian_noise", "shot_noise", "occlusion")

shapes = st.tuples(*(st.integers(1, 7) for _ in range(4)))
severities = st.floats(0.0, 1.0)


def make(name, severity, bounds=BOUNDS):
    return getattr(shifts, name)(severity=severity, bounds=bounds)


def images(*shape, seed=0, dtype=torch.float32, low=0.0, high=1.0):
    return torch.from_numpy(np.random.default_rng(seed).uniform(low, high, size=shape)).to(dtype)


# What holds for every shift.


def test_every_listed_shift_is_tested_here() -> None:
    missing = set(MOVING) ^ set(shifts.MOVES)
    assert not missing, f"{missing}: add it to OF_VALUES or OF_IMAGES above, and to RANDOM if it draws random numbers"


@quick
@given(name=st.sampled_from(MOVING), shape=shapes, seed=st.integers(0, 2**32 - 1))
def test_severity_0_is_the_identity_even_outside_the_bounds(name, shape, seed):
    x = images(*shape, low=-3.0, high=3.0)
    assert torch.equal(make(name, 0.0).apply(x, seed), x)


@quick
@given(name=st.sampled_from(MOVING), shape=shapes, severity=severities, double=st.booleans())
def test_shifts_keep_shape_and_dtype_and_stay_within_bounds(name, shape, severity, double):
    x = images(*shape, dtype=torch.float64 if double else torch.float32, low=-1.0, high=2.0)
    moved = make(name, severity, (-1.0, 2.0)).apply(x)
    assert moved.shape == x.shape
    assert moved.dtype == x.dtype
    assert bool(torch.isfinite(moved).all())
    assert -1.0 <= float(moved.min()) <= float(moved.max()) <= 2.0


@pytest.mark.parametrize("name", OF_VALUES)
def test_shifts_of_values_treat_plain_vectors_as_flat_images(name):
    x = images(6, 2, 3, 4)
    shift = make(name, 0.4)
    assert torch.equal(shift.apply(x.flatten(1), 5), shift.apply(x, 5).flatten(1))


@pytest.mark.parametrize("name", MOVING)
def test_a_moved_example_depends_on_its_number_and_the_seed_alone(name, monkeypatch):
    x = images(9, 3, 6, 5)
    shift = make(name, 0.4)
    moved = shift.apply(x, seed=7)
    assert torch.equal(shift.apply(x, seed=7), moved)
    assert torch.allclose(shift.apply(x[:4], seed=7), moved[:4], atol=1e-6)
    assert torch.equal(shift.apply(x, seed=8), moved) == (name not in RANDOM)
    monkeypatch.setattr("wafl.shifts.shift._CHUNK", 100)
    assert torch.allclose(shift.apply(x, seed=7), moved, atol=1e-6)


@pytest.mark.parametrize("severity", [-0.1, math.nan, math.inf])
@pytest.mark.parametrize("name", [*MOVING, "label_shift"])
def test_a_severity_that_is_negative_or_not_finite_is_refused(name, severity):
    with pytest.raises(ValueError, match=rf"severity={severity} must .*: 0 leaves the data unchanged"):
        shifts.label_shift(severity=severity) if name == "label_shift" else make(name, severity)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: make("inversion", 1.5), r"severity=1.5 must lie in \[0, 1\]"),
        (lambda: make("blur", 1000.0), r"severity=1000.0 must lie in \[0, 100\]"),
        (lambda: make("rotation", 15.0), r"severity=15.0 must lie in \[0, 8\]"),
        (lambda: make("inversion", 1.0, None), r"bounds=None: Inversion needs .*: give bounds=\(low, high\)"),
        (lambda: make("shot_noise", 1.0, (0.0, math.inf)), r"ShotNoise needs .* two finite numbers"),
        (lambda: make("rotation", 1.0, (1.0, 0.0)), r"low < high"),
        (lambda: shifts.translation(severity=1.0, direction=(0.0, 0.0)), r"direction=\(0.0, 0.0\) must be two"),
        (lambda: shifts.affine(severity=1.0, linear=math.nan), r"linear=nan must be finite; 0 leaves it out"),
        (lambda: make("rotation", 1.0).apply(torch.zeros(3, 4)), r"rotation moves images .* shape \(4,\): reshape"),
        (lambda: make("blur", 1.0).apply(torch.zeros(3, 1, 4, 4, dtype=torch.uint8)), r"torch.uint8 .* floating"),
        (lambda: make("affine", 1.0).apply(torch.zeros(3)), r"shape \(3,\): give floating-point numbers"),
        (lambda: make("affine", 1.0).apply(torch.zeros(3, 4), seed=-1), r"seed=-1 must lie in"),
    ],
)
def test_bad_settings_and_examples_are_refused_with_the_remedy(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# Each shift against what it should be.


@quick
@given(contrast=st.floats(-1.0, 1.0), brightness=st.floats(-1.0, 1.0), linear=st.floats(-1.0, 1.0), severity=severities)
def test_affine_is_an_affine_map_whose_size_is_proportional_to_its_severity(contrast, brightness, linear, severity):
    shift = shifts.affine(severity=severity, contrast=contrast, brightness=brightness, linear=linear)
    basis = torch.eye(12, dtype=torch.float64)
    offset = shift.apply(torch.zeros(1, 12, dtype=torch.float64), seed=3)
    matrix = (shift.apply(basis, seed=3) - offset).mT
    x = images(5, 12, dtype=torch.float64)
    assert torch.allclose(shift.apply(x, seed=3), x @ matrix.mT + offset)
    assert torch.allclose(offset, torch.full_like(offset, severity * brightness))
    unit = shifts.affine(severity=1.0, contrast=0.0, brightness=0.0, linear=1.0)
    gaussian = (unit.apply(basis, seed=3) - basis).mT
    centered = basis - 1.0 / 12.0
    assert torch.allclose(matrix - basis, severity * (contrast * centered + linear * gaussian))


def test_the_linear_map_of_affine_is_gaussian_with_variance_1_over_the_dimension():
    basis = torch.eye(200, dtype=torch.float64)
    unit = shifts.affine(severity=1.0, contrast=0.0, brightness=0.0, linear=1.0)
    entries = math.sqrt(200) * (unit.apply(basis) - basis).numpy().ravel()
    assert stats.kstest(entries, "norm").pvalue > 0.01


@quick
@given(shape=shapes, quarters=st.integers(0, 8))
def test_rotation_by_quarter_turns_equals_rot90(shape, quarters):
    x = images(*shape[:3], shape[2])
    expected = np.rot90(x.numpy(), quarters, axes=(2, 3))
    assert np.allclose(shifts.rotation(severity=float(quarters)).apply(x), expected, atol=1e-5)


@quick
@given(severity=st.floats(0.0, 4.0), height=st.integers(9, 14), width=st.integers(9, 14))
def test_rotation_between_quarter_turns_equals_scipys(severity, height, width):
    """Inside the circle that stays in the image; around it, scipy fills in other values."""
    x = images(1, 1, height, width, dtype=torch.float64)
    moved = shifts.rotation(severity=severity).apply(x)[0, 0].numpy()
    expected = ndimage.rotate(x[0, 0].numpy(), 90.0 * severity, reshape=False, order=1, mode="nearest")
    rows, columns = np.indices((height, width))
    inside = np.hypot(rows - (height - 1) / 2, columns - (width - 1) / 2) <= (min(height, width) - 1) / 2
    assert np.allclose(moved[inside], expected[inside], atol=1e-6)


@pytest.mark.parametrize(("severity", "side"), [(0.3, 2), (0.5, 4), (1.0, 7)])
def test_occlusion_covers_one_square_anywhere_in_the_image_with_its_darkest_value(severity, side):
    x = images(300, 2, 7, 9, dtype=torch.float64) + 1.0
    moved = shifts.occlusion(severity=severity, bounds=None).apply(x, seed=2)
    corners = set()
    for before, after in zip(x, moved, strict=True):
        changed = (before != after).any(0)
        rows, columns = (torch.nonzero(changed.any(axis)).flatten().tolist() for axis in (1, 0))
        top, left = min(rows), min(columns)
        expected = before.clone()
        expected[:, top : top + side, left : left + side] = before.min()

        # Where the image is darkest already, nothing changes, and a corner may seem to be missing.
        if before.min() not in before[:, top : top + side, left : left + side]:
            assert torch.equal(after, expected)
            corners.add((top, left))
    assert len(corners) == (7 - side + 1) * (9 - side + 1)


@quick
@given(severity=st.floats(0.01, 5.0), down=st.floats(-1.0, 1.0))
def test_translation_between_pixels_equals_scipys(severity, down):
    x = images(1, 1, 8, 6, dtype=torch.float64)
    moved = shifts.translation(severity=severity, direction=(down, 1.0)).apply(x)[0, 0]
    expected = ndimage.shift(x[0, 0].numpy(), (severity * down, severity), order=1, mode="nearest")
    assert np.allclose(moved, expected, atol=1e-9)


@quick
@given(severity=st.floats(0.01, 100.0), shape=shapes)
def test_blur_equals_scipys_and_leaves_a_constant_image_as_it_is(severity, shape):
    blur = shifts.blur(severity=severity)
    x = images(*shape, dtype=torch.float64)
    expected = ndimage.gaussian_filter(x.numpy(), (0, 0, severity, severity), mode="nearest", truncate=4.0)
    assert np.allclose(blur.apply(x), expected, atol=1e-12)
    assert np.allclose(blur.apply(x.float()), expected, atol=1e-5)
    assert torch.allclose(blur.apply(torch.full(shape, 0.7)), torch.tensor(0.7), atol=1e-5)


@pytest.mark.parametrize("severity", [1e-300, 1e-3, 1e4])
def test_gaussian_noise_is_normal_with_its_severity_as_std(severity):
    x = torch.zeros(400, 100, dtype=torch.float64)
    noise = shifts.gaussian_noise(severity=severity).apply(x).numpy() / severity
    assert stats.kstest(noise.ravel(), "norm").pvalue > 0.01
    assert abs(noise.std() - 1.0) < 0.02
    assert np.abs(np.corrcoef(noise[:40])[~np.eye(40, dtype=bool)]).max() < 0.5


@quick
@given(rate=st.floats(0.0, 30.0), draws=st.lists(st.integers(0, 2**24 - 1), min_size=1, max_size=50))
def test_photon_counts_are_poisson_quantiles(rate, draws):
    u = (np.array(draws) + 0.5) * 2.0**-24
    ours = poisson_quantile(torch.full((len(draws),), rate, dtype=torch.float64), torch.from_numpy(u))
    assert np.array_equal(ours, stats.poisson.ppf(u, rate))


@pytest.mark.parametrize("severity", [0.01, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("light", [0.05, 0.5])
def test_shot_noise_has_the_mean_and_variance_of_poisson(severity, light):
    """In [-1, 1], with bounds so high that nothing is clipped: mean v and variance severity^2 v."""
    low, high = -1.0, 1.0 + 2.0 * 100
    scale = math.sqrt(101.0)
    x = torch.full((200, 200), low + light * (high - low), dtype=torch.float64)
    moved = shifts.shot_noise(severity=severity / scale, bounds=(low, high)).apply(x, seed=1).numpy()
    share = (moved - low) / (high - low)
    assert share.mean() == pytest.approx(light, abs=4.0 * severity / scale * math.sqrt(light) / 200)
    assert share.var() == pytest.approx((severity / scale) ** 2 * light, rel=0.04)


def test_shot_noise_leaves_the_darkest_value_and_counts_whole_photons():
    x = torch.cat([torch.zeros(50, 50), images(50, 50)])
    moved = shifts.shot_noise(severity=0.5, bounds=BOUNDS).apply(x)
    assert not moved[:50].any()
    assert torch.equal(moved * 4.0, (moved * 4.0).round())
    assert float((shifts.shot_noise(severity=1e-200, bounds=BOUNDS).apply(x) - x).abs().max()) <= 1e-6


def test_bright_shot_noise_is_within_one_photon_of_poisson():
    u = torch.arange(1, 1000, dtype=torch.float64) / 1000
    for rate in (30.5, 100.0, 5000.0):
        severity = 1.0 / math.sqrt(rate)
        ours = rate * values._shot(torch.ones(999, dtype=torch.float64), severity, u)
        assert np.abs(ours.numpy() - stats.poisson.ppf(u.numpy(), rate)).max() <= 1.0


@quick
@given(low=st.floats(-5.0, 5.0), width=st.floats(0.1, 10.0), severity=severities)
def test_inversion_follows_its_formula_and_twice_is_the_identity(low, width, severity):
    bounds = (low, low + width)
    x = images(3, 2, 4, 4, dtype=torch.float64, low=bounds[0], high=bounds[1])
    expected = (1.0 - severity) * x + severity * (2.0 * low + width - x)
    assert torch.allclose(shifts.inversion(severity=severity, bounds=bounds).apply(x), expected)
    negative = shifts.inversion(bounds=bounds)
    assert torch.allclose(negative.apply(negative.apply(x)), x)


# Labels.


labels = st.lists(st.integers(0, 4), min_size=1, max_size=40)


@quick
@given(y=labels, severity=st.floats(0.0, 1e308), seed=st.integers(0, 2**32 - 1))
def test_label_weights_sum_to_1_and_are_equal_within_a_label(y, severity, seed):
    weights = shifts.label_shift(severity=severity).weights(y, 5, seed)
    assert float(weights.sum()) == pytest.approx(1.0)
    assert float(weights.min()) >= 0.0
    for label in set(y):
        assert len(weights[torch.tensor(y) == label].unique()) == 1


@quick
@given(y=labels, seed=st.integers(0, 2**32 - 1))
def test_label_weights_at_severity_0_are_equal(y, seed):
    weights = shifts.label_shift(severity=0.0).weights(torch.tensor(y), 5, seed)
    assert torch.allclose(weights, torch.full_like(weights, 1.0 / len(y)))


def test_the_odds_of_two_labels_are_tilted_by_the_severity():
    y = torch.tensor([0, 0, 0, 1, 1, 2])
    odds = [shifts.label_shift(severity=s).weights(y, 3, seed=5)[[0, 3, 5]].log() for s in (0.5, 1.0, 3.0)]
    assert torch.allclose(odds[0] - odds[0][0], 0.5 * (odds[1] - odds[1][0]))
    assert torch.allclose(odds[2] - odds[2][0], 3.0 * (odds[1] - odds[1][0]))


def test_label_shares_are_a_flat_dirichlet_draw():
    """Each label's share of one draw is Beta(1, classes - 1)."""
    y = torch.arange(4)
    shares = torch.stack([shifts.label_shift(severity=1.0).weights(y, 4, seed) for seed in range(500)]).numpy()
    for label in range(4):
        assert stats.kstest(shares[:, label], stats.beta(1, 3).cdf).pvalue > 0.01


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 3], r"labels 0 .. 3, which are not all in 0 .. 2"),
        ([-1, 0], r"labels -1 .. 0"),
        ([0.0, 1.0], r"torch.float32 of shape \(2,\): a label shift needs one whole number"),
        ([[0], [1]], r"shape \(2, 1\)"),
        ([], r"at least one example"),
    ],
)
def test_labels_that_are_not_classes_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        shifts.label_shift(severity=1.0).weights(y, 3)
