"""``radius="auto"``: chosen by leaving clients out, once, without test data, for at most two more runs of work."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wafl
from wafl.parts.schedule import Schedule
from wafl.train import chosen_radius, fit
from wafl.train.checkpoint.checkpoint import Checkpoint
from wafl.train.chosen_radius import CANDIDATES, best_index
from wafl.train.embedded import Embedded

QUICK: dict[str, Any] = {"rounds": 3, "local_steps": 1, "batch_size": 8, "learning_rate": 0.1}


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(24) % 3
    centers = 2.0 * torch.eye(3, 5)
    pairs = [(centers[y] + torch.randn(24, 5, generator=generator), y) for _ in range(8)]
    return wafl.Federation.from_arrays(pairs, test_fraction=0.25)


def plain_choice(values: np.ndarray) -> int:
    """The rule in plain words: the smallest radius within one bootstrap standard error of the best score."""

    def score(row: np.ndarray) -> float:
        worst = sorted(row)[: max(1, math.ceil(len(row) / 10))]
        return (row.mean() + sum(worst) / len(worst)) / 2

    def error(one: np.ndarray, other: np.ndarray) -> float:
        draws = np.random.default_rng(0).integers(len(one), size=(1000, len(one)))
        return float(np.std([score(one[drawn]) - score(other[drawn]) for drawn in draws]))

    scores = [score(row) for row in values]
    best = int(np.argmax(scores))
    return next(r for r in range(best + 1) if scores[best] - scores[r] <= error(values[best], values[r]))


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_that_of_the_rule_in_plain_words(seed: int) -> None:
    draws = np.random.default_rng(seed)
    clients = draws.uniform(0.4, 0.9, size=draws.integers(4, 30))
    values = clients + draws.normal(0, 0.05, (4, 1)) + draws.normal(0, 0.1, (4, len(clients)))
    assert best_index(torch.tensor(values))[0] == plain_choice(values)
    assert best_index(-torch.tensor(values), larger_is_better=False)[0] == plain_choice(values)


def test_a_larger_radius_is_chosen_only_if_it_is_clearly_better() -> None:
    same = torch.full((4, 12), 0.7)
    assert best_index(same)[0] == 0
    better = same.clone()
    better[2] += 0.1  # for every client: there is no error of this difference
    index, why = best_index(better)
    assert index == 2
    assert "accuracy 80%" in why
    assert "the best mean" in why
    better[0], better[1] = torch.nan, torch.nan
    assert best_index(better[:3])[0] == 2, "what diverged is not chosen"
    assert best_index(torch.full((3, 5), torch.nan))[0] == 0


def test_an_auto_run_is_the_run_with_the_radius_that_was_chosen(clients: wafl.Federation) -> None:
    model = wafl.models.mlr(clients)
    heard: list[tuple[int, str, float]] = []

    class Hears(wafl.callbacks.Callback):
        def on_choice(self, index: int, name: str, chosen: Any) -> None:
            heard.append((index, name, chosen.radius))

    runs = wafl.sweep(model, clients, wafl.WAFL(radius="auto"), {"seed": [0, 1]}, callbacks=[Hears()], **QUICK)
    for index, run in enumerate(runs):
        chosen = run.settings["chosen"]
        assert chosen["radius"] == run.settings["method"]["objective"]["radius"]
        assert [row["radius"] for row in chosen["tried"]] == sorted(row["radius"] for row in chosen["tried"])
        assert heard[index] == (index, f"WAFL (seed={index})", chosen["radius"])
        known = wafl.fit(model, clients, wafl.WAFL(radius=chosen["radius"]), seed=index, **QUICK)
        assert all(torch.equal(run.params[name], known.params[name]) for name in run.params)


def test_candidates_are_parts_of_the_spread_of_a_client_and_follow_the_unit(clients: wafl.Federation) -> None:
    def tried(scale: float, norm: float = 2) -> list[float]:
        pairs = [(scale * x, y) for x, y in map(clients.train.of, range(8))]
        here = Embedded(wafl.Federation.from_arrays(pairs, test_fraction=0), torch.device("cpu"))
        return chosen_radius.candidates(here.spread(), norm, 5)

    deviations = [(x - x.mean(0)).square().sum(1) for x, _ in map(clients.train.of, range(8))]
    spread = math.sqrt(torch.cat(deviations).double().mean())
    assert tried(1.0) == pytest.approx([part * spread for part in CANDIDATES], rel=0.005)
    assert tried(1.0, math.inf) == pytest.approx([part * spread / math.sqrt(5) for part in CANDIDATES], rel=0.005)
    assert tried(100.0) == pytest.approx([100.0 * part * spread for part in CANDIDATES], rel=0.005)


def test_test_examples_do_not_decide(clients: wafl.Federation) -> None:
    other = replace(clients, test=replace(clients.test, y=(clients.test.y + 1) % 3))
    model, method = wafl.models.mlr(clients), wafl.WAFL(radius="auto")
    one, two = (wafl.fit(model, each, method, **QUICK).settings["chosen"] for each in (clients, other))
    assert one == two


def test_a_learning_rate_that_falls_does_so_in_the_shorter_training_too() -> None:
    schedule = Schedule(rounds=40, local_steps=1, learning_rate=lambda number: 1.0 / (1 + number))
    shorter = chosen_radius._shorter(schedule, [10, 10])
    assert [shorter.rate(index) for index in range(shorter.rounds)] == [
        1.0 / (1 + index * 40 // 16) for index in range(16)
    ]


def test_a_training_that_resumes_does_not_choose_again(
    clients: wafl.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(wafl.callbacks.Callback):
        def on_progress(self, progress: Any) -> None:
            if len(progress.runs[0].history) == 2:
                raise KeyboardInterrupt

    model, method = wafl.models.mlr(clients), wafl.WAFL(radius="auto")
    whole = wafl.fit(model, clients, method, **QUICK)
    with pytest.raises(KeyboardInterrupt):
        wafl.fit(model, clients, method, callbacks=[Crash()], checkpoint=Checkpoint(tmp_path), **QUICK)
    monkeypatch.setattr(chosen_radius, "choose_radius", lambda *_: pytest.fail("it chose again"))
    resumed = wafl.fit(model, clients, method, checkpoint=Checkpoint(tmp_path), **QUICK)
    assert resumed.settings["chosen"] == whole.settings["chosen"]
    assert all(torch.equal(resumed.params[name], whole.params[name]) for name in whole.params)


def test_a_radius_that_cannot_be_chosen_is_refused_before_any_work(
    clients: wafl.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "settled", lambda *_: pytest.fail("it began to work"))
    model, few = wafl.models.mlr(clients), clients.set_apart([0, 1, 2, 3, 4])[0]
    with pytest.raises(ValueError, match="needs at least 4 of them, not 3: give a number"):
        wafl.fit(model, few, wafl.WAFL(radius="auto"), **QUICK)
    weights = wafl.weights.fixed([1 / 8] * 8)
    with pytest.raises(ValueError, match=r"radius='auto' leaves clients out: .*or give the radius as a number"):
        wafl.fit(model, clients, wafl.WAFL(radius="auto", client_weights=weights), **QUICK)
    with pytest.raises(ValueError, match="with space or cost_matrix, give a number"):
        wafl.WAFL(radius="auto", cost_matrix="clients")
    with pytest.raises(ValueError, match="radius='large' must be 'auto', or a number and be positive"):
        wafl.WAFL(radius="large")  # pyright: ignore[reportArgumentType]


def test_if_every_candidate_diverges_the_smallest_trains_and_says_so(clients: wafl.Federation) -> None:
    with pytest.raises(wafl.DivergedError):
        wafl.fit(
            wafl.models.mlr(clients), clients, wafl.WAFL(radius="auto"), **{**QUICK, "rounds": 8, "learning_rate": 1e30}
        )
