"""The leaderboard: nobody is tuned on who is tested on, and the same command gives the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

import wafl
from wafl.lab.leaderboard import measure as board
from wafl.lab.leaderboard.measure import Effort
from wafl.lab.leaderboard.tables import of_leaderboard
from wafl.lab.leaderboard.tasks import DATA, NaturalData

LITTLE = Effort(trials=4, splits=2, rounds=1, local_steps=1)


def quiet(_: str) -> None:
    pass


@pytest.mark.parametrize("name", ["smartwatch", "pols", "hospitals"])
def test_no_client_is_unseen_that_methods_were_tuned_on(name: str) -> None:
    data = DATA[name]
    if data.missing:
        pytest.skip(f"{name} is not here")
    tuned = set(data.tuners().names)
    splits = [data.split(number) for number in range(5)]
    for seen, unseen in splits:
        assert not tuned & set(unseen.names)
        assert not set(seen.names) & set(unseen.names)
        assert tuned < set(seen.names)
    assert len({unseen.names for _, unseen in splits}) > 1, "splits differ"


def test_clients_have_five_angles() -> None:
    """A digit turned by an angle, whatever library turns it: the unseen clients' digits look like no other's."""
    digits = wafl.load_dataset("digits").partition(20, iid=True, preprocess="unit", seed=0)
    seen, unseen = DATA["turned-digits"].split(0)
    for place, angle in enumerate((0, 15, 30, 45, 60)):
        upright = digits.train.of(place)[0].double()[:, 0]
        turned = ndimage.rotate(upright, angle, axes=(1, 2), reshape=False, order=1, mode="nearest")
        here = unseen.train.of(0)[0] if place == 4 else seen.train.of(place)[0]
        # Clients keep whole gray levels, of which there are 16.
        assert np.abs(here.numpy()[:, 0] - turned)[:, 2:6, 2:6].max() < 0.5 / 16 + 1e-6


def test_the_unseen_angle_is_never_trained_or_tuned_on() -> None:
    seen, unseen = DATA["turned-digits"].split(0)
    assert (seen.num_clients, unseen.num_clients) == (16, 4)
    assert [int(name.split()[1]) % 5 for name in unseen.names] == [4] * 4
    assert {int(name.split()[1]) % 5 for name in DATA["turned-digits"].tuners().names} == {0, 1, 2, 3}


def test_given_again_it_gives_the_same_bits_and_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(work: str) -> str:
        return json.dumps(board.leaderboard(["turned-digits"], ["FedAvg", "WAFL"], LITTLE, tmp_path / work, quiet))

    first = make("one")
    assert make("two") == first
    monkeypatch.setattr(board, "_tuned", lambda *_: 1 / 0)
    assert make("one") == first
    kept = board.finished(["turned-digits", "pols"], ["FedAvg", "WAFL", "AFL"], LITTLE, tmp_path / "one")
    assert kept["results"] == json.loads(first)["results"]
    assert kept["unfinished"] == {"turned-digits": ["AFL"], "pols": ["FedAvg", "WAFL", "AFL"]}
    assert "Not made: AFL on turned-digits; FedAvg, WAFL, AFL on pols." in of_leaderboard(kept)
    text = of_leaderboard(json.loads(first))
    assert "| WAFL |" in text
    assert "attacked" in text


def test_data_that_are_not_here_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAFL_DATA", str(tmp_path))
    found = board.leaderboard(["femnist", "to-usps"], ["FedAvg"], LITTLE, tmp_path, quiet)
    assert found["absent"] == {"femnist": "femnist", "to-usps": "mnist"}
    assert "Not here when this was made: femnist" in of_leaderboard({**found, "results": {}, "what": {}})


def test_unknown_names_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown method 'Fed': use one of WAFL, FedAvg"):
        board.leaderboard(["turned-digits"], ["Fed"], LITTLE, tmp_path, quiet)
    with pytest.raises(ValueError, match="unknown data 'digit': use one of smartwatch"):
        board.leaderboard(["digit"], ["FedAvg"], LITTLE, tmp_path, quiet)


def test_clients_take_as_many_steps_under_every_method() -> None:
    data: NaturalData = DATA["femnist"]
    for name in board.TEN:
        schedule = board._schedule(wafl.METHODS[name](), data, Effort())  # pyright: ignore[reportPrivateUsage]
        assert schedule["rounds"] * schedule["local_steps"] == 200


@pytest.mark.parametrize("name", ["FedAvg", "WAFL", "CVaR"])
def test_all_methods_try_the_same_rates_with_options_that_do_little_and_then_their_options(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[wafl.Tuning] = []

    def tune(*args: Any, **options: Any) -> wafl.Tuning:
        made.append(wafl.tune(*args, **options))
        return made[-1]

    monkeypatch.setattr(board, "tune", tune)
    best = board._tuned(  # pyright: ignore[reportPrivateUsage]
        DATA["turned-digits"], name, Effort(rounds=1, local_steps=1)
    )
    rates, options = ([trial.setting for trial in tuning.trials[name]] for tuning in made)
    assert rates == [{"learning_rate": rate} for rate in board.RATES]
    assert len(options) == 4
    assert best.value == max(tuning.best[name].value for tuning in made)
    if name == "FedAvg":
        assert {0.5 <= each["learning_rate"] / options[0]["learning_rate"] <= 2.0 for each in options} == {True}
    else:
        gentle = made[0].best[name]
        assert (
            gentle.method.declared()[{"WAFL": "gamma", "CVaR": "alpha"}[name]][1] == {"WAFL": 15.0, "CVaR": 0.0}[name]
        )
        assert best.schedule["learning_rate"] == gentle.schedule["learning_rate"]
        assert options[0] == {"WAFL": {"gamma": 0.5, "norm": 2}, "CVaR": {"alpha": 0.5}}[name]
