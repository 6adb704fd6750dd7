"""Damaged studies on Flower: repaired without nodes, and resumed with them to the undamaged study's bits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.config.commands import assert_one_line
from tests.flower.conftest import SIZES, UNEVEN
from tests.flower.runs import BASE, assert_same, interrupt, only
from tests.oracles import flower_fakes as fakes
from tests.oracles.flower_fakes import Clock
from tests.studies.commands import flip, invoke
from wafl.base.errors import FolderError
from wafl.studies.folder import StudyFolder

EXPERIMENT = only(
    {"method": "FedAvg"}, {"method": "SCAFFOLD"}, seeds=[2, 5], schedule={**BASE["schedule"], "rounds": 3}
)
CLIENTS = fakes.make_clients(SIZES)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished study, and one that was stopped in its second method, each in a folder with what its nodes keep."""
    folder = tmp_path_factory.mktemp("studies")
    with pytest.MonkeyPatch.context() as patch:
        time = fakes.virtual(patch)
        grids = {name: fakes.make_grid(time, folder / name, CLIENTS, UNEVEN, EXPERIMENT) for name in ("whole", "half")}
        fakes.train(grids["whole"], EXPERIMENT, folder / "whole" / "study")
        interrupt(grids["half"], 6)
        with pytest.raises(KeyboardInterrupt):
            fakes.train(grids["half"], EXPERIMENT, folder / "half" / "study")
    return {name: folder / name for name in grids}


DAMAGES: dict[str, tuple[str, Callable[[Path], Any], str, set[str]]] = {
    "results": ("whole", lambda path: flip(path / "results.json"), "Still to test: fedavg, scaffold", set()),
    "parameters": (
        "whole",
        lambda path: flip(path / "scaffold" / "seed-5" / "params.safetensors"),
        "Still to train: scaffold",
        {"scaffold"},
    ),
    "the last checkpoint": (
        "half",
        lambda path: flip(sorted(path.glob("checkpoint/scaffold/*/state.json"))[-1]),
        "Dropped",
        {"scaffold"},
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_study_is_repaired_without_nodes_and_ends_with_the_same_bits(
    damage: str, places: dict[str, Path], clock: Clock, tmp_path: Path
) -> None:
    which, spoil, text, trained = DAMAGES[damage]
    path = Path(shutil.copytree(places[which], tmp_path / "all")) / "study"
    spoil(path)
    shown = invoke("repair", path)
    assert shown.exit_code == 0, shown.output
    assert text in shown.output
    assert f"flwr run APP -c 'folder=\"{path}\"'" in shown.output or not trained
    grid = fakes.make_grid(clock, path.parent, CLIENTS, UNEVEN, EXPERIMENT)
    fakes.train(grid, EXPERIMENT, path)
    assert any(seen.round is not None for seen in grid.seen) == bool(trained), "what is sound is not trained again"
    assert_same(path, places["whole"] / "study")


def test_a_sound_study_on_flower_is_left_as_it_is(places: dict[str, Path]) -> None:
    assert "is sound: nothing was changed" in invoke("repair", places["whole"] / "study").output


@pytest.mark.parametrize("damage", ["damaged", "missing"])
def test_without_its_roster_a_study_cannot_be_repaired_and_says_why(
    damage: str, places: dict[str, Path], clock: Clock, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(places["whole"] / "study", tmp_path / "study"))
    flip(path / "roster.json") if damage == "damaged" else (path / "roster.json").unlink()
    results = StudyFolder(path).read_results()
    assert_one_line(invoke("repair", path), str(path / "roster.json"), damage, "put it back")
    grid = fakes.make_grid(clock, tmp_path, CLIENTS, UNEVEN, EXPERIMENT)
    with pytest.raises(FolderError, match=f"{damage}.*put it back"):  # the clients here now may be others
        fakes.train(grid, EXPERIMENT, path)
    assert StudyFolder(path).read_results() == results
