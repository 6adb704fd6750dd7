"""Sizes and inputs in another unit than the data are said once, with the unit; those in the same are not."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch

import wafl

PIXELS = torch.rand(12, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 3


def clients(**options: Any) -> wafl.Federation:
    return wafl.Federation.from_arrays([(PIXELS, LABELS)] * 2, unit="pixels", **options)


BOXED = clients(bounds=(0, 1))


def trained(method: wafl.Method | None = None, on: wafl.Federation = BOXED) -> wafl.Run:
    return wafl.fit(wafl.models.mlr(on), on, method or wafl.FedAvg(), rounds=1, local_steps=1)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (wafl.PGD(epsilon=8, steps=1), "epsilon=8 is beyond the diameter of the data, 1: .* pass epsilon=0.0314$"),
        (wafl.FGSM(epsilon=2.1, norm=2), "epsilon=2.1 is beyond the diameter of the data, 2"),
        (wafl.WassersteinShift(radius=4.5, norm=1, steps=1), "radius=4.5 is beyond the diameter of the data, 4"),
    ],
)
def test_an_attack_beyond_the_box_of_the_data_is_said_at_the_users_line(attack: wafl.Attack, message: str) -> None:
    run = trained()
    with pytest.warns(wafl.UnitWarning, match=message) as caught:
        wafl.evaluate(run, BOXED, attack=attack)
    assert [each.filename for each in caught] == [__file__]
    assert "[0, 1] (pixels)" in str(caught[0].message)


def test_a_certificate_beyond_the_box_is_said_and_given() -> None:
    run = trained()
    with pytest.warns(wafl.UnitWarning, match="radius=9 is beyond the diameter of the data, 2: they lie in") as caught:
        assert len(wafl.certify(run, BOXED, radii=[1.0, 9.0], achieved=False)) == 2
    assert [each.filename for each in caught] == [__file__]
    wafl.certify(run, BOXED, radii=[9.0], achieved=False, label_cost=1.0)  # labels are paid from the radius, too


@pytest.mark.parametrize("method", [wafl.FedPGM(epsilon=8, steps=1), wafl.WAFL(radius=2.5)])
def test_training_in_a_ball_beyond_the_box_is_said(method: wafl.Method) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(method)
    assert sum(each.category is wafl.UnitWarning for each in caught) == 1


def test_what_fits_the_box_or_has_none_is_not_said() -> None:
    run = trained(wafl.WAFL(radius=0.5))
    for attack in (wafl.PGD(epsilon=1, steps=1), wafl.FGSM(epsilon=2, norm=2), wafl.PGD(8, steps=1, space="0")):
        wafl.evaluate(run, BOXED, attack=attack)
    open_ended = clients()
    wafl.evaluate(trained(on=open_ended), open_ended, attack=wafl.PGD(epsilon=8, steps=1))


def test_inputs_are_said_only_beyond_the_box_by_its_width() -> None:
    run = trained()
    for fits in (PIXELS + 1.0, PIXELS - 1.0, PIXELS[:0]):
        run.predict(fits)
    trained(on=clients()).predict(255 * PIXELS)
    with pytest.warns(wafl.UnitWarning, match=r"x has values from .* to 2\d\d.*, and the model .* \[0, 1\] \(pixels\)"):
        run.predict(255 * PIXELS)


def test_a_label_that_moves_is_paid_from_the_radius_too() -> None:
    assert wafl.WAFL(radius=5.0, label_cost=2.0).objective.reach is None  # pyright: ignore
    assert wafl.WAFL(radius=5.0, norm=math.inf).objective.reach == ("radius", 5.0, math.inf)  # pyright: ignore
