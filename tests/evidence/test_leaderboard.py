"""The leaderboard: nobody is tuned on who is tested on, and the same command gives the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import wafl
from wafl.evidence import leaderboard as board
from wafl.evidence.leaderboard import Effort
from wafl.evidence.natural import DATA, NaturalData
from wafl.evidence.tables import of_leaderboard

LITTLE = Effort(trials=2, splits=2, rounds=1, local_steps=1)


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


def test_the_unseen_angle_is_never_trained_or_tuned_on() -> None:
    seen, unseen = DATA["turned-digits"].split(0)
    assert (seen.num_clients, unseen.num_clients) == (16, 4)
    assert [int(name.split()[1]) % 5 for name in unseen.names] == [4] * 4
    assert {int(name.split()[1]) % 5 for name in DATA["turned-digits"].tuners().names} == {0, 1, 2, 3}


def test_statistics_come_from_the_clients_that_train() -> None:
    clients = wafl.load_dataset("digits").partition(6, iid=True, preprocess="zscore")
    seen, unseen = clients.set_apart([1, 4])
    assert seen.names == ("client 0", "client 2", "client 3", "client 5")
    assert unseen.names == ("client 1", "client 4")
    x = seen.train.x
    assert float(x.mean(0).abs().max()) < 1e-4
    with pytest.raises(ValueError, match="not all of them"):
        clients.set_apart(range(6))


def test_given_again_it_gives_the_same_bits_and_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(work: str) -> str:
        return json.dumps(board.leaderboard(["turned-digits"], ["FedAvg", "WAFL"], LITTLE, tmp_path / work, quiet))

    first = make("one")
    assert make("two") == first
    monkeypatch.setattr(board, "_made", lambda *_: 1 / 0)
    assert make("one") == first
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
