"""The paper's experiments: every file can be read, every kind of experiment runs, and nothing is done twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from research.__main__ import main
from research.reproduction import experiments as files
from research.reproduction import measure, reproduce
from research.reproduction.draw import FIGURES, draw, of_the_paper
from research.reproduction.experiments import PROTOCOLS, SCALES
from research.reproduction.page import of_experiment
from wafl.base.errors import ConfigError

ROOT = Path(__file__).parents[2]


def quiet(_: str) -> None:
    pass


@pytest.mark.parametrize("name", files.names())
def test_a_file_that_no_protocol_or_scale_could_run_is_noticed(name: str) -> None:
    for protocol in PROTOCOLS:
        for scale in SCALES:
            for part in files.read(name, protocol, scale):
                assert part.figure in FIGURES
                assert part.tests or part.figure == "partition"
                assert scale == "full" or reproduce.missing_data(part) is None, "the small scales need no data folder"


@pytest.mark.parametrize(  # `make test` runs the first case
    ("which", "protocol"),
    [("papers", "paper"), ("kinds", "fair"), pytest.param("ours", "paper", marks=pytest.mark.slow)],
)
def test_every_experiment_gives_numbers_and_a_picture(which: str, protocol: Any, tmp_path: Path) -> None:
    """Through ``python -m research``: the paper's figures and tables, ours, and of the tuned protocol one per kind."""
    every = [part for name in files.names() for part in files.read(name, protocol, "smoke")]
    kinds = list({part.figure: part for part in every}.values())
    papers = [part for part in every if part.number in files.FILES]
    papers += [part for part in kinds if part.figure not in {each.figure for each in papers}]
    chosen = {"kinds": kinds, "papers": papers, "ours": [part for part in every if part not in papers]}[which]
    for name in dict.fromkeys(part.number for part in chosen):
        wanted = [part.part for part in chosen if part.number == name]
        folders = ["--output", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
        main(["reproduce", name, "--protocol", protocol, "--scale", "smoke", "--part", *wanted, *folders])
    for part in chosen:
        path = tmp_path / "out" / f"{part.label}.json"
        numbers = json.loads(path.read_text())
        assert numbers["command"] == f"python -m research reproduce {part.number} --protocol {protocol} --scale smoke"
        assert {"packages", "machine", "seeds", "git_commit", "python"} <= set(numbers)
        assert path.with_suffix(".png").is_file() == (FIGURES[part.figure] is not None)
        if part.figure != "partition":
            labels = {row["entry"] for row in numbers["rows"]}
            assert labels == {method.label for method in part.experiment.methods}
            assert all(0.0 <= row["accuracy"] <= 100.0 for row in numbers["rows"] if "diverged" not in row)


def test_what_a_scale_changes_later_changes_no_full_experiment() -> None:
    """And it has the last word at its scale, also over what the file says for a data set and a protocol."""
    small = files.read("figure-4", "paper", "small")[0].experiment.schedule
    assert (small.learning_rate, small.rounds) == (0.1, 20)
    whole = {part.label: reproduce.digest(part) for part in files.read("figure-4", "paper", "full")}
    before = json.loads((ROOT / "docs/reproduction/fig-attacked-share-mnist-paper.json").read_text())["digest"]
    assert whole["fig-attacked-share-mnist-paper"] == before


@pytest.mark.parametrize("part_name", ["cifar10", "mnist"])
def test_small_models_of_the_papers_figure_have_learned(part_name: str, tmp_path: Path) -> None:
    """Guessing has a loss of 2.30 and an accuracy of 10%: a picture of models that guess would show nothing."""
    part = next(each for each in files.read("figure-4", "paper", "small") if each.part == part_name)
    path = reproduce.reproduce(part, tmp_path / "out", tmp_path / "work", quiet, methods=["fedavg"])
    assert path is not None
    clean = [row for row in json.loads(path.read_text())["rows"] if row["attacked"] == 0]
    assert clean
    assert all(row["loss"] < 1.7 and row["accuracy"] > 40.0 for row in clean)


def test_a_picture_has_no_axis_above_100_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    rows = [
        {"label": label, "method": label, "seed": seed, "test": "l_inf", "attacked": share,
         "accuracy": 99.0 + seed - 60.0 * share, "loss": share}
        for label in ("WAFL", "FedAvg") for seed in (0, 1) for share in (0.0, 1.0)
    ]  # fmt: skip
    numbers = {"figure": "attacked", "title": "", "part": "mnist", "protocol": "fair", "scale": "full", "seeds": [0, 1],
               "rows": rows, "tests": {"l_inf": {"kind": "pgd", "epsilon": 0.1, "steps": 9}}}  # fmt: skip
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    draw(numbers, tmp_path / "picture.png")
    accuracy, loss = drawn[0].axes
    assert (accuracy.get_xlim()[1], accuracy.get_ylim()[1], loss.get_xlim()[1]) == (100.0, 100.0, 100.0)
    assert accuracy.get_xlabel() == "attacked clients (%)\nPGD, l_inf, epsilon 0.1, 9 steps"


def test_the_papers_six_methods_have_their_l2_ball() -> None:
    def rows(*labels: str) -> list[dict[str, Any]]:
        return [{"label": label, "accuracy": index} for index, label in enumerate(labels)]

    six = ("WAFL", "FedPGM", "FedFGSM", "DRFA", "AFL", "FedAvg")
    result = of_the_paper({"rows": rows(*six, "wafl-l2", "afl-longer")})
    assert result is not None
    assert {row["label"]: row["accuracy"] for row in result["rows"]} == dict(zip(six, (6, 1, 2, 3, 4, 5), strict=True))
    assert of_the_paper({"rows": rows(*six)}) is None, "there are no others"
    assert of_the_paper({"rows": rows(*six[:4], "wafl-l2")}) is None, "not all of them are there"


@pytest.mark.slow
def test_drawing_again_trains_and_tests_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (part, *_) = files.read("fig-gamma-radius", "paper", "smoke")
    path = reproduce.reproduce(part, tmp_path / "out", tmp_path / "work", quiet)
    assert path is not None
    before, picture = path.read_bytes(), path.with_suffix(".png")
    picture.unlink()

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was made again")

    monkeypatch.setattr(reproduce, "_made", refuse)
    reproduce.reproduce(part, tmp_path / "out", tmp_path / "work", quiet)
    assert picture.is_file()
    assert path.read_bytes() == before


@pytest.mark.slow
def test_an_interrupted_experiment_goes_on_to_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (part, *_) = files.read("fig-gamma-radius", "fair", "smoke")
    whole = reproduce.reproduce(part, tmp_path / "whole", tmp_path / "work-1", quiet)
    with monkeypatch.context() as patch:
        patch.setattr(reproduce, "measured", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            reproduce.reproduce(part, tmp_path / "rest", tmp_path / "work-2", quiet)
    rest = reproduce.reproduce(part, tmp_path / "rest", tmp_path / "work-2", quiet)
    assert whole is not None
    assert rest is not None
    assert json.loads(whole.read_text())["rows"] == json.loads(rest.read_text())["rows"]


@pytest.mark.slow
def test_a_test_that_was_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (part, *_) = files.read("fig-gamma-radius", "paper", "smoke")
    tests = {"clean": {"kind": "none"}, "moved": {"kind": "fgsm", "epsilon": 0.1, "attacked": [0.5]}}
    part, tested, done = replace(part, tests=tests), measure._tested, list[str]()  # pyright: ignore[reportPrivateUsage]

    def interrupted(run: Any, clients: Any, name: str, test: Any) -> list[dict[str, Any]]:
        done.append(name)
        if done == ["clean", "moved"]:
            raise KeyboardInterrupt
        return tested(run, clients, name, test)

    monkeypatch.setattr(measure, "_tested", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reproduce.reproduce(part, tmp_path / "out", tmp_path / "work", quiet)
    path = reproduce.reproduce(part, tmp_path / "out", tmp_path / "work", quiet)
    assert path is not None
    runs = len({row["gamma"] for row in json.loads(path.read_text())["rows"]})
    assert done == ["clean", "moved", "moved", *["clean", "moved"] * (runs - 1)]


@pytest.mark.slow
def test_a_test_may_be_of_some_seeds_alone(tmp_path: Path) -> None:
    (part, *_) = files.read("fig-gamma-radius", "paper", "smoke")
    tests = {"clean": {"kind": "none"}, "moved": {"kind": "fgsm", "attacked": [0.5], "seeds": [1]}}
    part = replace(part, tests=tests, experiment=part.experiment.model_copy(update={"seeds": [0, 1]}))
    path = reproduce.reproduce(part, tmp_path / "out", tmp_path / "work", quiet)
    assert path is not None
    result = {(row["test"], row["seed"]) for row in json.loads(path.read_text())["rows"]}
    assert result == {("clean", 0), ("clean", 1), ("moved", 1)}


@pytest.mark.slow
def test_methods_that_were_left_out_are_named_and_can_be_added(tmp_path: Path) -> None:
    (part, *_) = files.read("fig-gamma-sweep", "paper", "smoke")
    messages: list[str] = []
    path = reproduce.reproduce(part, tmp_path / "out", tmp_path / "work", messages.append, ["fedavg"])
    assert path is not None
    assert json.loads(path.read_text())["unfinished"] == ["wafl"]
    assert "not made: wafl" in messages[-1]
    reproduce.reproduce(part, tmp_path / "out", tmp_path / "work", messages.append)
    numbers = json.loads(path.read_text())
    assert numbers["unfinished"] == []
    assert [row["entry"] for row in numbers["rows"]] == sorted((row["entry"] for row in numbers["rows"]), reverse=True)


def hopeless(protocol: Any) -> files.Part:
    """Ground norms with an order-1 ball whose supremum is infinite, next to FedAvg."""
    (part,) = files.read("fig-norms", protocol, "smoke")
    first, last = (
        next(method for method in part.experiment.methods if method.label == label)
        for label in ("wafl-order-1", "fedavg")
    )
    first = first.model_copy(update={"gamma": 1e-6, "bounds": "none"})
    return replace(part, experiment=part.experiment.model_copy(update={"methods": [first, last]}))


def test_a_method_that_always_diverges_is_recorded_and_the_others_are_made(tmp_path: Path) -> None:
    part = hopeless("paper")
    path = reproduce.reproduce(part, tmp_path / "out", tmp_path / "work", quiet)
    assert path is not None
    numbers = json.loads(path.read_text())
    assert numbers["unfinished"] == []
    (lost,) = [row for row in numbers["rows"] if row["entry"] == "wafl-order-1"]
    assert "accuracy" not in lost
    assert "gamma" in lost["diverged"]
    assert {row["label"] for row in numbers["rows"]} == {"wafl-order-1", "FedAvg"}
    assert path.with_suffix(".png").is_file()
    text = of_experiment(numbers)
    assert "| wafl-order-1 | diverged | diverged |" in text
    assert f"Diverged: wafl-order-1: {lost['diverged']}." in text


@pytest.mark.slow
def test_methods_that_another_machine_added_are_said_to_be(tmp_path: Path) -> None:
    (part, *_) = files.read("fig-gamma-sweep", "paper", "smoke")
    path = reproduce.reproduce(part, tmp_path / "out", tmp_path / "work", quiet, ["fedavg"])
    assert path is not None
    numbers = json.loads(path.read_text())
    assert "added" not in numbers
    path.write_text(json.dumps({**numbers, "python": "2.7"}))
    reproduce.reproduce(part, tmp_path / "out", tmp_path / "work", quiet)
    (added,) = json.loads(path.read_text())["added"]
    assert added["methods"] == ["wafl"]
    assert added["python"] == numbers["python"]


def test_numbers_of_a_changed_experiment_are_not_drawn(tmp_path: Path) -> None:
    (part, *_) = files.read("tab-partitions", "paper", "smoke")
    path = reproduce.reproduce(part, tmp_path, tmp_path / "work", quiet)
    assert path is not None
    path.write_text(json.dumps({**json.loads(path.read_text()), "digest": "another"}))
    with pytest.raises(ConfigError, match="another version of this experiment: remove it"):
        reproduce.reproduce(part, tmp_path, tmp_path / "work", quiet)


def test_data_that_are_not_here_are_named_and_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAFL_DATA", str(tmp_path))
    messages: list[str] = []
    for part in files.read("tab-domains", "paper", "full"):
        assert reproduce.reproduce(part, tmp_path / "out", tmp_path / "work", messages.append) is None
    assert ["mnist is not here" in line for line in messages] == [True, True, False], messages
    assert "usps is not here" in messages[2]


@pytest.mark.slow
def test_a_run_of_few_rounds_is_the_beginning_of_one_of_many(tmp_path: Path) -> None:
    (part, *_) = files.read("fig-convergence", "fair", "smoke")
    labels = [method.label for method in part.experiment.methods]
    assert labels == ["wafl-round-1", "wafl-round-2", "fedavg-round-1", "fedavg-round-2"]
    reproduce.reproduce(part, tmp_path / "out", tmp_path, quiet)
    folder = tmp_path / part.label
    first, second = (
        json.loads((folder / f"wafl-round-{count}/study/wafl-round-{count}/run.json").read_text())["history"]
        for count in (1, 2)
    )
    assert first[0]["loss"] == second[0]["loss"]
    assert first[0]["cohort"] == second[0]["cohort"]


def test_a_section_of_a_part_changes_that_part_alone() -> None:
    table = {"a": 1, "b": {"c": 2, "d": 3}, "x": {"b": {"c": 4}, "fair": {"a": "unset"}}, "fair": {"b": {"d": 5}}}

    def resolved(*chosen: str) -> dict[str, Any]:
        return files._pruned(files._resolved(table, chosen, {"x", "y", "fair", "paper"}))  # pyright: ignore[reportPrivateUsage]

    assert resolved("y", "paper") == {"a": 1, "b": {"c": 2, "d": 3}}
    assert resolved("x", "paper") == {"a": 1, "b": {"c": 4, "d": 3}}
    assert resolved("x", "fair") == {"b": {"c": 4, "d": 5}}
    deep = {"small": {"a": 1}, "x": {"small": {"a": 2}}}
    assert files._resolved(deep, ("x", "small"), {"x", "small"}) == {"a": 2}  # pyright: ignore[reportPrivateUsage]


def test_an_unknown_experiment_protocol_or_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fig-norms"):
        files.read("fig-norm", "fair", "full")
    with pytest.raises(ConfigError, match="'fare' must be one of paper, fair"):
        files.read("fig-norms", "fare", "full")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="'huge' must be one of smoke, small, full"):
        files.read("fig-norms", "fair", "huge")  # pyright: ignore[reportArgumentType]


def test_the_paper_is_listed_by_its_own_numbers_and_files_by_their_names() -> None:
    assert files.names()[:8] == [*(f"figure-{number}" for number in range(2, 7)), *(f"table-{n}" for n in (1, 2, 3))]
    assert files.read("figure-4", "fair", "smoke") == files.read("fig-attacked-share", "fair", "smoke")
    assert files.read("fig-pooled", "fair", "smoke")[0].number == "fig-pooled"


def test_old_modules_in_experiment_files_are_translated_and_change_no_digest() -> None:
    (part, *_) = files.read("table-1", "paper", "full")
    assert part.content["data"]["source"] == "wafl.lab.domains:to_usps_whole"
    assert part.experiment.data.source == "research.domains:to_usps_whole"
    numbers = json.loads((ROOT / "docs" / "reproduction" / f"{part.label}.json").read_text())
    assert reproduce.digest(part) == numbers["digest"]


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["fig-norm"], "did you mean 'fig-norm"),
        (["figure-4", "--part", "svhn"], "--part svhn is not a part of figure-4"),
        (["figure-2", "--method", "afl"], "--method afl is not in figure-2"),
    ],
)
def test_bad_arguments_are_errors(arguments: list[str], messages: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["reproduce", *arguments])
    assert error.value.code == 2
    assert messages in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.processes
def test_methods_made_at_once_give_what_they_give_one_after_another(tmp_path: Path) -> None:
    (part, *_) = files.read("fig-gamma-sweep", "paper", "smoke")
    one, two = (
        reproduce.reproduce(part, tmp_path / f"out-{jobs}", tmp_path / f"work-{jobs}", quiet, jobs=jobs)
        for jobs in (1, 2)
    )
    assert one is not None
    assert two is not None
    assert json.loads(one.read_text())["rows"] == json.loads(two.read_text())["rows"]
