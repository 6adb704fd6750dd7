"""The report shows a model at the radius of its training only if that radius has the unit of the data."""

from __future__ import annotations

from typing import Any

import pytest

import wafl
from wafl.report.page import Walks
from wafl.studies.pages import measured


def test_a_model_whose_ball_has_another_unit_is_in_no_ball_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "MOST_EXAMPLES", 20)
    monkeypatch.setattr(measured, "SIZES", (0.0, 0.1))
    clients = wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=4, seed=0)
    options: dict[str, Any] = {"rounds": 2, "local_steps": 2, "learning_rate": 0.1, "progress": False}

    def swept(cost_matrix: str | None) -> bool:
        method = wafl.WAFL(radius=1.0, cost_matrix=cost_matrix)
        runs = wafl.sweep(wafl.models.mlr(clients), clients, method, {"radius": [0.2, 0.4]}, **options)
        sections = measured.measure({str(run.point): run for run in runs}, clients)
        (walks,) = next(section for section in sections if section.title == "Radius").blocks
        assert isinstance(walks, Walks)
        return any("the sweep over radius" in walk.name for walk in walks.walks)

    assert swept(None)
    assert not swept("clients"), "its radius is a distance between clients"
