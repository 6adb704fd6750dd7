"""Prediction sets from Python: what they return, print, save and refuse."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from tests.oracles import conformal
from tests.theory.population import MODEL, world
from wafl.base.files import sealed, unsealed
from wafl.sets.answers import Client, Scorer
from wafl.sets.held_out import read_clients
from wafl.sets.scores import RAPS
from wafl.sets.thresholds import on_grid


def named(clients, prefix):
    return replace(clients, names=tuple(f"{prefix} {index}" for index in range(clients.num_clients)))


CALIBRATION, TEST = named(world(19, 12, seed=1), "site"), named(world(5, 40, seed=2), "other")


def outputs_of(model, x):
    with torch.no_grad():
        return model(torch.as_tensor(x)).numpy()


def scores_of(clients, name="margin"):
    """Each client's scores, by loops in numpy."""
    result = []
    for client in range(clients.num_clients):
        x, y = (torch.cat(each) for each in zip(clients.train.of(client), clients.test.of(client), strict=True))
        rows = outputs_of(MODEL, x.double())
        result.append([conformal.class_scores(name, row)[label] for row, label in zip(rows, y.tolist(), strict=True)])
    return result


@pytest.mark.parametrize("score", ["margin", "probability", "aps", "raps"])
def test_thresholds_and_coverage_are_those_of_plain_loops(score):
    scores = scores_of(CALIBRATION, score)
    for about, expected in (
        ("example", conformal.example_threshold(scores, "0.8")),
        ("client", conformal.client_threshold(scores, "0.8", "0.95")),
    ):
        sets = wafl.prediction_sets(MODEL, CALIBRATION, coverage=0.8, about=about, score=score)
        assert sets.threshold == pytest.approx(expected, rel=1e-12)
        measured = sets.evaluate(TEST)
        for client in range(TEST.num_clients):
            x, y = (torch.cat(each) for each in zip(TEST.train.of(client), TEST.test.of(client), strict=True))
            held = sets.predict(x)
            assert held.shape == (40, 2)
            assert held[torch.arange(40), outputs_of(MODEL, x.double()).argmax(1)].all(), "the top class is in each set"
            assert measured.covered[client] == held[torch.arange(40), y].double().mean()
            assert measured.sizes[client] == held.sum(1).double().mean()
            assert measured.full[client] == held.all(1).sum()
        assert measured.names == TEST.names
        assert measured.examples == (40,) * 5


def test_a_grid_rounds_up_and_gives_the_bits_that_answers_of_clients_give():
    grid = np.linspace(-3.0, 3.0, 64).tolist()
    plain = wafl.prediction_sets(MODEL, CALIBRATION, coverage=0.8)
    sets = wafl.prediction_sets(MODEL, CALIBRATION, coverage=0.8, grid=grid)
    assert sets.threshold in grid
    assert 0.0 <= sets.threshold - plain.threshold <= grid[1] - grid[0]
    answers = []
    for client in range(CALIBRATION.num_clients):
        alone = CALIBRATION.of_clients([client])
        examples = alone.examples
        scorer = Scorer.of(MODEL, sets.scorer.score, examples)
        answers.append(Client(scorer, examples.x, examples.y).answer(grid))
    assert on_grid(grid, answers, sets.target.holds(19)) == sets.threshold


def test_the_sentence_says_what_is_covered_and_how_surely():
    sets = wafl.prediction_sets(MODEL, CALIBRATION, coverage=0.8)
    assert sets.statement == "the sets cover at least 80% of the next client's examples, with 95% confidence"
    text = str(sets)
    assert text.splitlines()[0] == "The sets cover at least 80% of the next client's examples, with 95% confidence."
    assert f"margin is at most {sets.threshold:.4g}" in text
    assert "of 228 sets are full" in text
    few = wafl.prediction_sets(MODEL, CALIBRATION.of_clients(range(5)), coverage=0.8)
    assert "with 83% confidence, the most that 5 clients support" in few.statement
    one = wafl.prediction_sets(MODEL, CALIBRATION, coverage=0.8, about="example")
    assert one.statement == "the sets cover the next example of the next client with probability at least 80%"
    own = wafl.prediction_sets(MODEL, CALIBRATION, coverage=0.8, own_sampling=True, confidence=0.9)
    assert "at least 80% of the next client's distribution, with 90% confidence" in own.statement
    assert own.threshold == math.inf
    assert "Every set is full" in str(own)
    assert own.evaluate(TEST).full == (40,) * 5
    moved = wafl.prediction_sets(MODEL, CALIBRATION, coverage=0.8, radius=0.05, norm=math.inf, power=1)
    assert "if they move by at most 0.05 (l_inf, W_1, input units), with" in moved.statement


def test_invited_clients_without_an_answer_count_and_are_reported():
    invited = [*CALIBRATION.names, "silent"]
    sets = wafl.prediction_sets(MODEL, CALIBRATION, coverage=0.8, confidence=0.9, invited=invited)
    expected = conformal.client_threshold([*scores_of(CALIBRATION), []], "0.8", "0.9")
    assert sets.threshold == pytest.approx(expected, rel=1e-12)
    assert "1 of 20 invited clients gave no finite answer and counts as infinity: silent." in str(sets)
    with pytest.raises(ValueError, match="client site 0 was not invited"):
        wafl.prediction_sets(MODEL, CALIBRATION, invited=["silent"])
    with pytest.raises(ValueError, match="client silent occurs twice"):
        wafl.prediction_sets(MODEL, CALIBRATION, invited=[*invited, "silent"])


def test_a_file_holds_the_promise_and_detects_accidents(tmp_path):
    options = {"coverage": 0.8, "confidence": 0.9, "radius": 0.01, "norm": math.inf}
    sets = wafl.prediction_sets(MODEL, CALIBRATION, invited=[*CALIBRATION.names, "x"], **options)
    content = unsealed(sets.save(tmp_path / "sets.json").read_bytes())
    assert content["statement"] == sets.statement
    assert content["threshold"] == sets.threshold
    assert content["target"]["shift"]["norm"] == "inf"
    assert content["missing"] == ["x"]
    assert [row["client"] for row in content["calibration"]] == list(CALIBRATION.names)
    json.dumps(content, allow_nan=False)
    (tmp_path / "sets.json").write_text((tmp_path / "sets.json").read_text().replace("0.8", "0.9"))
    with pytest.raises(ValueError, match="checksum"):
        unsealed((tmp_path / "sets.json").read_bytes())


@pytest.mark.parametrize(
    "options",
    [
        {"radius": 0.01, "norm": math.inf, "invited": [*CALIBRATION.names, "x"]},
        {"score": RAPS(penalty=0.1, free=1)},
        {"about": "example"},
        {"own_sampling": True},
    ],
    ids=["moved", "raps", "example", "distribution"],
)
def test_saved_sets_are_loaded_again_bit_for_bit_for_the_same_model(options, tmp_path):
    sets = wafl.prediction_sets(MODEL, CALIBRATION, coverage=0.8, **options)
    loaded = wafl.load_sets(sets.save(tmp_path / "sets.json"), MODEL)
    assert str(loaded) == str(sets)
    assert (loaded.target, loaded.calibrated, loaded.missing) == (sets.target, sets.calibrated, sets.missing)
    assert torch.equal(loaded.predict(TEST.train.x), sets.predict(TEST.train.x))
    assert loaded.evaluate(TEST) == sets.evaluate(TEST)


def test_saved_sets_that_were_changed_or_are_of_another_model_are_refused(tmp_path):
    sets = wafl.prediction_sets(MODEL, CALIBRATION, coverage=0.8)
    file = sets.save(tmp_path / "sets.json")
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"is about the model .* and this one is"):
        wafl.load_sets(file, other)
    for old, new, message in (
        (f'"threshold": {sets.threshold!r}', '"threshold": 9.0', "checksum differs"),
        ('"format": 1', '"format": 2', "checksum differs"),
    ):
        text = file.read_text()
        assert old in text
        (tmp_path / "changed.json").write_text(text.replace(old, new))
        with pytest.raises(ValueError, match=message):
            wafl.load_sets(tmp_path / "changed.json", MODEL)
    content = unsealed(file.read_bytes())
    for changes, message in (
        ({"format": 2}, "format 2"),
        ({"score": {"type": "Mine"}}, "its score Mine is not one of wafl's"),
        ({"score": {"type": "Margin", "free": 1}}, "Margin has no option 'free'"),
        ({"calibration": []}, "not enough values"),
        ({"target": {}}, "'shift'"),
        ({"threshold": "low"}, "could not convert"),
        ({"threshold": "nan"}, "its threshold is not a number"),
        ({"target": {**content["target"], "shift": 5}}, "no attribute 'items'"),
        ({"calibration": [dict.fromkeys(content["calibration"][0], "a")]}, "a valid integer"),
    ):
        (tmp_path / "changed.json").write_bytes(sealed({**content, **changes}))
        with pytest.raises(ValueError, match=f"does not hold prediction sets, or was changed: .*{message}"):
            wafl.load_sets(tmp_path / "changed.json", MODEL)
    with pytest.raises(FileNotFoundError, match=r"give one that wafl.PredictionSets.save wrote"):
        wafl.load_sets(tmp_path / "none.json", MODEL)


def test_coverage_is_drawn_and_tabulated(tmp_path):
    measured = wafl.prediction_sets(MODEL, CALIBRATION, coverage=0.8).evaluate(TEST)
    figure = measured.plot(tmp_path / "sets.png")
    offsets = figure.axes[0].collections[0].get_offsets()
    np.testing.assert_allclose(offsets[:, 1], 100.0 * np.array(measured.covered))
    assert (tmp_path / "sets.png").stat().st_size > 1000
    assert [row["coverage"] for row in measured.rows()] == list(measured.covered)
    assert measured.mean == pytest.approx(np.mean(measured.covered))
    assert measured.share == np.mean([value >= 0.8 for value in measured.covered])


def regression(num_clients, seed=0):
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(num_clients):
        x = rng.normal(size=(10, 3))
        pairs.append((x, x @ [1.0, -2.0, 0.5] + rng.normal() + 0.3 * rng.normal(size=10)))
    return wafl.Federation.from_arrays(pairs, test_fraction=0.2)


def line(outputs=1):
    model = torch.nn.Linear(3, outputs).double()
    with torch.no_grad():
        model.weight[0], model.bias[0] = torch.tensor([1.0, -2.0, 0.5]), 0.25
        if outputs > 1:
            model.weight[1], model.bias[1] = 0.0, 0.5
    return model


def test_intervals_cover_targets():
    clients, others = regression(20), named(regression(30, seed=1), "other")
    sets = wafl.prediction_sets(line(), clients, coverage=0.8)
    scores = []
    for client in range(20):
        x, y = (torch.cat(each) for each in zip(clients.train.of(client), clients.test.of(client), strict=True))
        scores.append((y.reshape(-1) - (x @ torch.tensor([1.0, -2.0, 0.5], dtype=x.dtype) + 0.25)).abs().tolist())
    assert sets.threshold == pytest.approx(conformal.client_threshold(scores, "0.8", "0.95"), rel=1e-9)
    measured = sets.evaluate(others)
    assert measured.sizes == pytest.approx((2.0 * sets.threshold,) * 30)
    low, high = sets.predict(others.train.of(0)[0]).unbind(1)
    assert bool((high - low > 0).all())
    assert "mean interval width" in str(measured)
    scaled = wafl.prediction_sets(line(2), clients, coverage=0.8, score="scaled_residual")
    assert scaled.threshold == pytest.approx(2.0 * sets.threshold)
    assert scaled.evaluate(others).covered == measured.covered
    few = wafl.prediction_sets(line(), clients.of_clients([0]), coverage=0.8, confidence=0.5, invited=("client 0", "b"))
    assert few.threshold == math.inf
    assert few.evaluate(others).full == (10,) * 30


BAD = {
    "the site's labels": (lambda: replace_labels(7), {}, r"site 3: label 7 is not one of the model's classes, 0 to 1"),
    "empty": (lambda: empty(), {}, r"site 3: there are no examples"),
    "coverage": (lambda: CALIBRATION, {"coverage": 1.0}, r"coverage=1.0 must lie in \(0, 1\)"),
    "about": (lambda: CALIBRATION, {"about": "clients"}, r"about='clients' must be client or example"),
    "confidence": (lambda: CALIBRATION, {"confidence": 0.99}, r"at most 95% confidence \(19/20\)"),
    "confidence of an example": (
        lambda: CALIBRATION,
        {"about": "example", "confidence": 0.9},
        r"are for about='client'",
    ),
    "too few": (lambda: CALIBRATION, {"about": "example", "coverage": 0.96}, r"19 allow at most 19/20 \(95%\)"),
    "radius": (lambda: CALIBRATION, {"radius": -1.0}, r"radius=-1.0 must be finite and at least 0"),
    "norm": (lambda: CALIBRATION, {"radius": 1.0, "norm": 3}, r"norm=3 must be 1, 2 or inf"),
    "score and radius": (
        lambda: CALIBRATION,
        {"radius": 1.0, "score": "aps"},
        r"score='aps' has no radius: use 'margin'",
    ),
    "sampling and radius": (lambda: CALIBRATION, {"radius": 1.0, "own_sampling": True}, r"use own_sampling=False"),
    "gamma": (lambda: CALIBRATION, {"radius": 1.0, "about": "example"}, r"needs training=, the clients that trained"),
    "trained": (lambda: CALIBRATION, {"training": CALIBRATION.of_clients([4])}, r"site 4 trained, or has the name"),
    "renamed": (
        lambda: CALIBRATION,
        {"training": named(CALIBRATION.of_clients([4]), "x")},
        r"site 4 has the examples of x 0",
    ),
    "twins": (lambda: replace(CALIBRATION, names=("a",) * 19), {}, r"two clients have the same name"),
}


def replace_labels(label):
    y = CALIBRATION.train.y.clone()
    y[CALIBRATION.train.offsets[3]] = label
    return replace(CALIBRATION, train=replace(CALIBRATION.train, y=y))


def empty():
    sizes = CALIBRATION.train.num_examples.tolist()
    begins = CALIBRATION.train.offsets.tolist()
    rows = [torch.arange(0 if client == 3 else size) + begins[client] for client, size in enumerate(sizes)]
    return replace(
        CALIBRATION,
        train=CALIBRATION.train.picked(rows),
        test=CALIBRATION.test.picked([torch.arange(0)] * 19),
    )


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name(case):
    make, options, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        wafl.prediction_sets(MODEL, make(), **options)


def test_outputs_without_a_score_are_refused_by_name():
    x = CALIBRATION.train.raw.clone()
    x[CALIBRATION.train.offsets[2]] = math.nan
    broken = replace(CALIBRATION, train=replace(CALIBRATION.train, raw=x))
    with pytest.raises(ValueError, match="site 2: an output of the model is NaN or infinite"):
        wafl.prediction_sets(MODEL, broken)
    with pytest.raises(ValueError, match="NaN or infinite"):
        wafl.prediction_sets(MODEL, CALIBRATION).predict(x)
    model = line(2)
    with torch.no_grad():
        model.weight[1, 0] = 1.0
    with pytest.raises(ValueError, match=r"client 0: the scale, the model's second output, is -.* must be positive"):
        wafl.prediction_sets(model, regression(20), score="scaled_residual")
    with pytest.raises(ValueError, match=r"'residual' needs a model with 1 output, and this one has the shape \(2,\)"):
        wafl.prediction_sets(model, regression(20))
    with pytest.raises(ValueError, match=r"'margin' needs a model with 2 or more outputs"):
        wafl.prediction_sets(torch.nn.Linear(2, 1), CALIBRATION)


def test_a_run_checks_the_unit_and_the_names_of_classes():
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(8, 2)), np.array(["a", "b", "c", "b"] * 2)) for _ in range(4)]
    run = wafl.fit(
        wafl.models.mlr(clients := wafl.Federation.from_arrays(pairs, unit="volts")),
        clients, wafl.FedAvg(), rounds=1, local_epochs=1, progress=False,
    )  # fmt: skip
    fresh = [(x, np.where(y == "c", "d", y)) for x, y in pairs]
    for labels, message in ((fresh, r"client 0: label 'd' is not one of the model's classes, a, b, c"),):
        with pytest.raises(ValueError, match=message):
            wafl.prediction_sets(run, wafl.Federation.from_arrays(labels, unit="volts"))
    two = [(x[y != "a"], y[y != "a"]) for x, y in pairs]
    with pytest.raises(ValueError, match=r"number classes in another way than the run: pass classes=run.classes"):
        wafl.prediction_sets(run, wafl.Federation.from_arrays(two, unit="volts"))
    alike = wafl.Federation.from_arrays(two, unit="volts", classes=run.classes)
    assert wafl.prediction_sets(run, alike, coverage=0.5).predict(pairs[0][0]).shape == (8, 3)
    with pytest.raises(ValueError, match="trained on volts, and these clients have meters"):
        wafl.prediction_sets(run, wafl.Federation.from_arrays(pairs, unit="meters"))


def test_bytes_are_prepared_as_in_training():
    rng = np.random.default_rng(0)
    pairs = [(rng.integers(0, 256, (8, 1, 4, 4), dtype=np.uint8), np.arange(8) % 3) for _ in range(8)]
    clients = wafl.Federation.from_arrays(pairs, preprocess="unit")
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=1, local_epochs=1, progress=False)
    sets = wafl.prediction_sets(run, clients, coverage=0.5)
    (client, *_) = read_clients(sets.scorer, clients).values()
    held = sets.predict(clients.examples.raw[:8])
    assert torch.equal(held, client.sets(sets.threshold))


def test_equal_examples_are_covered_however_many_are_predicted_together() -> None:
    """The last bits of outputs depend on how many examples are computed together, and here every score is a tie."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    x = np.random.default_rng(0).normal(size=64)
    with torch.no_grad():
        label = int(model(torch.tensor(x, dtype=torch.float32)).argsort()[3])
    pairs = [(np.tile(x, (size, 1)), np.full(size, label)) for size in range(1, 41, 2)]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0.0, num_classes=10)
    sets = wafl.prediction_sets(model, clients, coverage=0.8, confidence=0.8)
    for count in (1, 2, 3, 5, 8, 17, 100):
        assert sets.predict(np.tile(x, (count, 1)))[:, label].all()
    assert sets.evaluate(clients).mean == 1.0
