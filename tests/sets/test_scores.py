"""Scores of classes and numbers against loops over their definitions."""

import numpy as np
import pytest
import torch

from tests.oracles import conformal
from wafl.sets.scores import RAPS, SCORES, Residual, ScaledResidual, make_score


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("name", ["margin", "probability", "aps", "raps"])
def test_each_score_is_that_of_its_definition(name, classes, ties):
    outputs = np.random.default_rng(classes).normal(size=(50, classes))
    outputs = np.round(outputs) if ties else outputs
    expected = np.array([conformal.class_scores(name, row) for row in outputs])
    score, tensor = make_score(name, classes), torch.tensor(outputs)
    y = torch.arange(50) % classes
    np.testing.assert_allclose(score.of(tensor, y), expected[np.arange(50), y], rtol=1e-12, atol=1e-12)
    threshold = float(np.median(expected)) + 1e-9
    sets = score.sets(tensor, threshold).numpy()
    top = outputs.argmax(1)
    assert sets[np.arange(50), top].all()
    sets[np.arange(50), top] = (expected <= threshold)[np.arange(50), top]
    np.testing.assert_array_equal(sets, expected <= threshold)


def test_a_label_is_in_its_set_exactly_if_its_score_is_low_enough():
    outputs = torch.randn(200, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(200) % 5
    for name in ("margin", "probability", "aps", "raps"):
        score = make_score(name, 5)
        for threshold in score.of(outputs, y)[:20].tolist():
            held = score.sets(outputs, threshold).gather(1, y[:, None])[:, 0]
            assert torch.equal(held, (score.of(outputs, y) <= threshold) | (outputs.argmax(1) == y))


def test_the_options_of_raps_count():
    outputs = torch.tensor([[3.0, 2.0, 1.0]], dtype=torch.float64)
    expected = conformal.class_scores("raps", outputs[0], penalty=0.5, free=1)
    np.testing.assert_allclose(RAPS(penalty=0.5, free=1).of_all(outputs)[0], expected, rtol=1e-12)


def test_intervals_are_around_the_prediction_and_scales_divide():
    outputs = torch.tensor([[1.0, 2.0], [3.0, 0.5]], dtype=torch.float64)
    y = torch.tensor([[2.0], [2.0]], dtype=torch.float64)
    assert Residual().of(outputs, y).tolist() == [1.0, 1.0]
    assert Residual().sets(outputs, 0.5).tolist() == [[0.5, 1.5], [2.5, 3.5]]
    assert ScaledResidual().of(outputs, y).tolist() == [0.5, 2.0]
    assert ScaledResidual().sets(outputs, 2.0).tolist() == [[-3.0, 5.0], [2.0, 4.0]]
    for scale in (0.0, -1.0):
        with pytest.raises(ValueError, match=r"the scale, the model's second output, is .* it must be positive"):
            ScaledResidual().of(torch.tensor([[1.0, scale]]), y[:1])


def test_unfit_names_are_refused():
    with pytest.raises(ValueError, match=r"must be one of margin, probability, aps.*did you mean 'margin'"):
        make_score("margins", 3)
    with pytest.raises(ValueError, match="'residual' is not for classes: use one of margin, probability, aps, raps"):
        make_score("residual", 3)
    with pytest.raises(ValueError, match="'aps' is not for a regression: use one of residual, scaled_residual"):
        make_score("aps", None)
    assert make_score(None, 3).name == "margin"
    assert make_score(None, None).name == "residual"
    assert list(SCORES) == ["margin", "probability", "aps", "raps", "residual", "scaled_residual"]
