"""Audits: a site's distance label by label, against POT, moved data and plain means."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import ot
import pytest
import torch
from scipy import stats
from torch import nn

import wafl
from tests.oracles import objective as oracles
from tests.oracles import theory
from tests.promises.files import forge, publish, status
from wafl.promises.audit import _limit, _power
from wafl.promises.known import Ball, known
from wafl.promises.published_labels import (
    Cell,
    cells_of,
    centers,
    differences,
    distance,
    halves,
    publish_labels,
    quantize,
    resamples,
)
from wafl.promises.quantities import quantity_of
from wafl.tasks.losses import CrossEntropy

MODEL = oracles.linear_model(np.array([[-4.0, 0.5], [4.0, 0.0], [0.0, 3.0]]), np.array([2.0, -2.0, 0.0]))
WEIGHTS = (0.5, 0.3, 0.2)


def pairs(num_clients, size, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    results = []
    for _ in range(num_clients):
        y = np.arange(size) % 3
        results.append((0.4 * y[:, None] + 0.2 * rng.normal(size=(size, 2)) + shift, y))
    return results


def federation():
    return wafl.Federation.from_arrays(pairs(3, 30, 0), test_fraction=0.0)


@cache
def issued(norm, points):
    """The bytes of a certificate, which takes longer to make than to read."""
    weights = wafl.weights.fixed(WEIGHTS)
    promise = publish(MODEL, federation(), radii=[0.1, 1.0], norm=norm, client_weights=weights, points=points)
    with TemporaryDirectory() as folder:
        promise.save(Path(folder) / "certificate.json")
        return (Path(folder) / "certificate.json").read_bytes()


def certificate(tmp_path, norm=2, points=4):
    file = tmp_path / "certificate.json"
    file.write_bytes(issued(norm, points))
    return file


def site(shift, seed=1, size=24):
    return wafl.Federation.from_arrays(pairs(1, size, seed, shift), test_fraction=0.25)


@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("shift", [0.0, 0.5, 3.0])
def test_what_is_certified_is_never_below_what_a_site_measures(tmp_path, norm, shift):
    mine = site(shift)
    result = wafl.audit(certificate(tmp_path, norm), MODEL, mine)
    (x, y), (x_test, y_test) = mine.train.of(0), mine.test.of(0)
    losses = theory.plain_losses(MODEL, *(np.concatenate(each) for each in ((x, x_test), (y, y_test))))
    assert result.measured == pytest.approx(losses.mean(), rel=1e-9)
    assert result.measured <= result.certified
    for each in result.labels:
        assert each.measured <= each.certified
    assert math.fsum(each.share for each in result.labels) == pytest.approx(1.0)


METRICS = {1: "cityblock", 2: "euclidean", math.inf: "chebyshev"}


@pytest.mark.parametrize("norm", METRICS)
def test_the_distance_is_at_least_that_of_pot_and_at_most_two_spreads_more(tmp_path, norm):
    mine, file = site(0.5), certificate(tmp_path, norm)
    checked = wafl.audit(file, MODEL, mine)
    here = [np.concatenate(each) for each in zip(mine.train.of(0), mine.test.of(0), strict=True)]
    elsewhere = [np.concatenate(each) for each in zip(*pairs(3, 30, 0), strict=True)]
    share = np.repeat(np.array(WEIGHTS) / 30, 30)
    published = wafl.verify(file).promise.content["labels"]["labels"]
    for each, claimed in zip(checked.labels, published, strict=True):
        a, b = here[0][here[1] == each.label], elsewhere[0][elsewhere[1] == each.label]
        weight = share[elsewhere[1] == each.label]
        cost = ot.dist(a, b, metric=METRICS[norm]) ** 2
        exact = math.sqrt(ot.emd2(np.full(len(a), 1 / len(a)), weight / weight.sum(), cost))
        assert exact <= each.distance * (1.0 + 1e-9)
        assert each.distance <= exact + 2.0 * claimed["spread"] * (1.0 + 1e-9)
        assert claimed["share"] == pytest.approx(weight.sum())
        losses = theory.plain_losses(MODEL, b, np.full(len(b), each.label))
        exact = losses @ weight / weight.sum()
        assert exact <= claimed["loss"] <= exact * (1.0 + 1.1e-9)  # rounded upwards, with room for other machines


def test_published_surrogates_are_those_of_each_label_alone(tmp_path):
    file = certificate(tmp_path)
    published = wafl.verify(file).promise.content["labels"]
    for claimed in published["labels"]:
        alone = [(x[y == claimed["label"]], y[y == claimed["label"]]) for x, y in pairs(3, 30, 0)]
        clients = wafl.Federation.from_arrays(alone, test_fraction=0.0, num_classes=3)
        weights = wafl.weights.fixed(WEIGHTS)
        best = publish(MODEL, clients, radii=[0.1], client_weights=weights).values[0.1]
        values = [0.01 * gamma + phi for gamma, phi in zip(published["gammas"], claimed["surrogates"], strict=True)]
        assert best * (1.0 - 1e-6) <= min(values) <= 1.1 * best  # the best of a few gammas, not of all


def test_a_site_like_the_federation_is_inside_and_one_far_away_is_not(tmp_path):
    file = certificate(tmp_path)
    near, far = wafl.audit(file, MODEL, site(0.0, seed=3)), wafl.audit(file, MODEL, site(2.0))
    assert sum(bool(each.inside) for each in near.labels) >= 2
    assert not any(each.inside for each in far.labels)
    few = wafl.audit(file, MODEL, wafl.Federation.from_arrays(pairs(1, 4, 5), test_fraction=0.0, num_classes=3))
    assert all(each.inside is None for each in few.labels if each.examples < 4)
    assert "resample" in str(near)
    assert "a shift of 1 would have been noticed with probability" in str(near)  # its largest radius


def equally(x):
    return Cell(x, torch.full((len(x),), 1.0 / len(x), dtype=torch.float64))


def alarms(trials, size, examples=60, points=4, shift=0.0):
    """How often a site of this number of examples, all moved by the shift, is outside of a federation of one label."""
    result = 0
    for trial in range(trials):
        normal = torch.Generator().manual_seed(trial)
        cell = equally(torch.randn(examples, 2, generator=normal, dtype=torch.float64))
        first, second = halves(cell)
        at = centers(first, points)
        weights, _ = quantize(cell, at, 2)
        again = {each.examples: each.distance for each in resamples(second, at, weights, 2, 19)}
        compared, bar = _limit(again, size)
        here = equally(torch.randn(compared, 2, generator=normal, dtype=torch.float64) + shift)
        result += distance(here.x, here.share, at, weights, 2) > bar
    return result


@pytest.mark.parametrize(
    ("trials", "size"), [(60, 16), *(pytest.param(500, size, marks=pytest.mark.slow) for size in (4, 16, 30, 60))]
)
def test_a_site_like_the_federation_is_outside_no_more_often_than_the_level(trials, size):
    assert alarms(trials, size) <= stats.binom.ppf(0.99, trials, 0.05)


@pytest.mark.slow
def test_more_examples_notice_a_shift_of_half_a_deviation_more_often():
    results = [alarms(60, size, examples=400, points=16, shift=0.5) for size in (8, 30, 120)]
    assert results[0] < results[1] < results[2]
    assert results[2] > 30


def one_label_each(num_labels, size, rng):
    y = np.repeat(np.arange(num_labels), size)
    return [(rng.normal(size=(len(y), 2)) + 3.0 * y[:, None], y)]


@pytest.mark.slow
def test_ten_labels_give_no_more_false_alarms_than_one(tmp_path):
    rng, model = np.random.default_rng(0), oracles.linear_model(np.ones((10, 2)), np.arange(10.0))
    outside = 0
    for trial in range(10):
        clients = wafl.Federation.from_arrays(one_label_each(10, 60, rng), test_fraction=0.0)
        file = tmp_path / f"{trial}.json"
        publish(model, clients, radii=[0.1], points=4).save(file)
        for _ in range(10):
            mine = wafl.Federation.from_arrays(one_label_each(10, 16, rng), test_fraction=0.0)
            outside += any(each.inside is False for each in wafl.audit(file, model, mine).labels)
    assert outside <= stats.binom.ppf(0.99, 100, 0.05)


@pytest.mark.slow
def test_the_power_grows_with_the_examples_and_with_the_shift(tmp_path):
    file = tmp_path / "certificate.json"
    clients = wafl.Federation.from_arrays(pairs(1, 360, 0), test_fraction=0.0)
    publish(MODEL, clients, radii=[0.1], points=4).save(file)

    def powers(size, shift):
        mine = wafl.Federation.from_arrays(pairs(1, 3 * size, 7), test_fraction=0.0)
        return np.mean([each.power for each in wafl.audit(file, MODEL, mine, shift=shift).labels])

    few, more, many = (powers(size, 0.15) for size in (8, 30, 64))
    assert few < more < many
    assert powers(30, 0.0) < 0.1
    assert powers(30, 2.0) == 1.0
    with pytest.raises(ValueError, match=r"shift=-1\.0 must be finite and at least 0"):
        powers(8, -1.0)


def test_between_published_sizes_the_limit_is_between_theirs():
    claimed = {4: 3.0, 16: 2.0}
    assert _limit(claimed, 3) is None
    assert [_limit(claimed, size) for size in (4, 16, 99)] == [(4, 3.0), (16, 2.0), (16, 2.0)]
    assert _limit(claimed, 9) == (9, pytest.approx(math.sqrt(9.0 - 5.0 * (1 / 2 - 1 / 3) / (1 / 2 - 1 / 4))))


def test_a_label_that_the_federation_lacks_has_no_certificate(tmp_path):
    file = certificate(tmp_path)
    forge(file, lambda content: content["labels"]["labels"].pop())
    result = wafl.audit(file, MODEL, site(0.0))
    assert [math.isinf(each.certified) for each in result.labels] == [False, False, True]
    assert math.isinf(result.certified)


def test_what_is_certified_and_compared_is_that_of_the_distance_and_the_spread(tmp_path):
    file, mine = certificate(tmp_path), site(0.5)
    published = wafl.verify(file).promise.content["labels"]
    rows = MODEL.weight.detach().numpy()
    slope = max(np.linalg.norm(one - other) for one in rows for other in rows)
    for each, claimed in zip(wafl.audit(file, MODEL, mine).labels, published["labels"], strict=True):
        pairs = zip(published["gammas"], claimed["surrogates"], strict=True)
        bounds = [gamma * each.distance**2 + phi for gamma, phi in pairs]
        assert each.certified == pytest.approx(min(*bounds, claimed["loss"] + slope * each.distance), rel=1e-9)
        distances = {resample["examples"]: resample["distance"] for resample in claimed["resamples"]}
        assert each.resample == pytest.approx(_limit(distances, each.examples)[1] + claimed["spread"], rel=1e-12)
        assert each.inside == (each.compared <= each.resample)


def test_a_shift_is_measured_from_the_federations_own_mean():
    """Examples far away are moved there first; then 5 in any direction is beyond a bar of 1, and 0 is not."""
    normal = torch.Generator().manual_seed(0)
    cell = equally(100.0 + 0.1 * torch.randn(20, 2, generator=normal, dtype=torch.float64))
    at, weights = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    assert [_power(cell, at, weights, 2, 8, 1.0, shift, 0) for shift in (0.0, 5.0)] == [0.0, 1.0]


def test_each_published_number_is_checked_to_the_last_digits():
    examples, weights, ball = federation().train, list(WEIGHTS), Ball(quantity_of("loss"), 2, 2)
    proof = known(MODEL, CrossEntropy())
    labels = publish_labels(proof, ball, examples, weights, [0.1], 2)
    assert differences(labels, proof, ball, examples, weights) is None
    first, *others = labels.labels
    for change in (
        {"share": first.share * 1.001},
        {"spread": first.spread * 1.001},
        {"weights": tuple(reversed(first.weights))},
        {"loss": first.loss * 0.999},
        {"surrogates": (*first.surrogates[:-1], first.surrogates[-1] * 0.999)},
    ):
        forged = replace(labels, labels=(replace(first, **change), *others))
        assert differences(forged, proof, ball, examples, weights) is not None, change
    # The farthest of all but one of 20 draws per label: beyond is a new one with probability 0.05 over 3 labels.
    cell = cells_of(examples, weights)[first.label][0]
    at, share = (torch.tensor(each, dtype=torch.float64) for each in (first.points, first.weights))
    again = resamples(halves(cell)[1], at, share, 2, 20 * 3 - 1)
    assert [each.distance for each in first.resamples] == pytest.approx([each.distance for each in again])


def test_what_is_published_is_recomputed_from_all_data(tmp_path):
    file = certificate(tmp_path)
    assert status(wafl.verify(file, model=MODEL, data=federation()))["labels"] == "recomputed"
    assert status(wafl.verify(file, model=MODEL))["labels"] == "attested"
    forge(file, lambda content: content["labels"]["labels"][0].update(spread=0.0))
    assert status(wafl.verify(file, model=MODEL, data=federation()))["labels"] == "wrong"
    forge(certificate(tmp_path), lambda content: content["labels"]["gammas"].__setitem__(0, 1e-6))
    assert status(wafl.verify(file, model=MODEL, data=federation()))["labels"] == "wrong"
    forge(certificate(tmp_path), lambda c: farther(c["labels"]["labels"][0]["resamples"][0]))
    assert status(wafl.verify(file, model=MODEL, data=federation()))["labels"] == "wrong"
    forge(certificate(tmp_path), lambda c: c["labels"]["labels"][0]["surrogates"].__setitem__(0, 0.0))
    assert status(wafl.verify(file, model=MODEL, data=federation()))["labels"] == "wrong"


@pytest.mark.parametrize("forgery", ["spread", "resample"])
def test_a_far_point_that_no_example_goes_to_excuses_no_other_number(tmp_path, forgery):
    """Numbers may differ by as much as other machines compute, which is little beside the examples, not the points."""
    file = certificate(tmp_path)

    def forged(content):
        label = content["labels"]["labels"][0]
        label["points"].append([1e12] * 2)
        label["weights"].append(0.0)
        if forgery == "spread":
            label["spread"] = 0.0
        else:
            farther(label["resamples"][0])

    forge(file, forged)
    assert status(wafl.verify(file, model=MODEL, data=federation()))["labels"] == "wrong"


def farther(resample):
    resample["distance"] *= 100.0


def test_an_audit_without_what_it_needs_is_refused(tmp_path):
    file = tmp_path / "certificate.json"
    publish(MODEL, federation(), radii=[0.1]).save(file)
    with pytest.raises(ValueError, match="ask for a certificate made with --points 16"):
        wafl.audit(file, MODEL, site(0.0))
    other = oracles.linear_model(np.ones((3, 2)), np.zeros(3))
    with pytest.raises(ValueError, match="is about a different model"):
        wafl.audit(certificate(tmp_path), other, site(0.0))
    wide = wafl.Federation.from_arrays([(np.ones((4, 3)), np.arange(4) % 2)])
    with pytest.raises(ValueError, match="the examples have 3 inputs, and the certificate's points do not"):
        wafl.audit(certificate(tmp_path), MODEL, wide)
    for change in (
        lambda label: label["weights"].pop(),
        lambda label: label.update(weights=[1.0] * len(label["weights"])),
        lambda label: label["resamples"].insert(0, {"examples": 0, "distance": 0.0}),
        lambda label: label["resamples"].append(label["resamples"][-1]),
    ):
        forge(certificate(tmp_path), lambda c, change=change: change(c["labels"]["labels"][0]))
        with pytest.raises(ValueError, match="about label 0 does not fit together"):
            wafl.audit(file, MODEL, site(0.0))
    for points in (0, -1):
        with pytest.raises(ValueError, match=f"points={points} must be at least 1"):
            certificate(tmp_path, points=points)
    targets = wafl.Federation.from_arrays([(np.ones((4, 2)), np.ones(4))], test_fraction=0.0)
    line = oracles.linear_model(np.ones((1, 2)))
    with pytest.raises(ValueError, match="points are per label: a regression has none"):
        publish(line, targets, radii=[0.1], loss="squared_error", points=4)


def test_a_network_is_audited_by_its_slopes(tmp_path):
    relu = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    file = tmp_path / "certificate.json"
    publish(relu, federation(), radii=[0.1], points=2).save(file)
    checked = wafl.audit(file, relu, site(0.3))
    assert checked.measured <= checked.certified < math.inf
    assert status(wafl.verify(file, model=relu, data=federation()))["labels"] == "recomputed"


def test_the_same_points_weigh_the_same_wherever_examples_lie():
    x = torch.tensor([[0.0], [1.0], [10.0]], dtype=torch.float64)
    share = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    weights, spread = quantize(Cell(x, share), torch.tensor([[0.0], [9.0]], dtype=torch.float64), 2)
    assert weights.tolist() == pytest.approx([0.5, 0.5])
    assert spread == pytest.approx(math.sqrt(0.3 * 1.0 + 0.5 * 1.0))
