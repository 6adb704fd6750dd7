"""Studies and runs as a page: its numbers come from the files and from ``wafl``, and what is missing is left out."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import wafl
from tests.report.reader import Reader
from wafl.base.files import sealed
from wafl.cli.main import app
from wafl.data.examples import Examples
from wafl.data.preprocessing import Preprocessing
from wafl.report.page import Code, Walks
from wafl.studies.folder import StudyFolder
from wafl.studies.pages import measured
from wafl.studies.pages.shown import show_study, together

EXPERIMENT = """
name = "few"
seeds = [0, 1]
[data]
dataset = "digits"
num_clients = 5
labels_per_client = 4
unseen = 0.2
[schedule]
rounds = 2
cohort = 3
local_steps = 2
learning_rate = 0.1
[[methods]]
method = "WAFL"
radius = [0.1, 0.3]
[[methods]]
method = "FedAvg"
[attack]
epsilon = 0.05
steps = 2
[evaluation]
attacked = [0.5]
every = 1
[faults]
dropout = 0.4
"""


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    (folder / "experiment.toml").write_text(EXPERIMENT)
    output = invoke("run", folder / "experiment.toml", "--output", folder)
    assert f"wafl report {folder / 'few'}" in output
    return folder / "few"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "MOST_EXAMPLES", 20)
    monkeypatch.setattr(measured, "MOST_MOVED", 20)
    monkeypatch.setattr(measured, "SIZES", (0.0, 0.1))


def titles(page: Path) -> list[str]:
    text = page.read_text()
    return re.findall(r'<h3 id="[^"]*">([^<]*)</h3>', text)


def test_a_report_has_every_section_that_a_study_has_numbers_for(study: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert f"Report: {page}" in invoke("report", study, "-o", page)
    assert titles(page) == [
        "Methods", "Under attack", "Radius", "Client by client", "Seen and unseen", "What the ball moves",
        "Round by round", "Radius and gamma", "Client weights", "Data", "Participation", "Setup",
    ]  # fmt: skip
    text = page.read_text()
    assert "WAFL, the sweep over radius" in text
    assert text.count("data:image/png") >= 6
    assert "accuracy under attack" not in text, "it was not measured by round"


def test_studies_are_compared_on_one_page(study: Path, tmp_path: Path) -> None:
    other = shutil.copytree(study, tmp_path / "other")
    invoke("report", study, other, "--quick", "-o", tmp_path / "page.html")
    assert titles(tmp_path / "page.html")[:2] == ["All studies: methods", "All studies: under attack"]
    (table,) = together({"few": study, "other": other})[0].blocks
    assert [row[1].text for row in table.rows] == ["few"] * 3 + ["other"] * 3


def test_a_report_goes_into_its_study_by_default(study: Path, tmp_path: Path) -> None:
    other = shutil.copytree(study, tmp_path / "other")
    invoke("report", other, "--quick")
    assert "Setup" in titles(other / "report.html")


def test_the_numbers_of_the_page_are_those_of_the_files(study: Path) -> None:
    results = json.loads((study / "results.json").read_text())
    lines = [json.loads(line) for line in (study / "metrics.jsonl").read_text().splitlines()]
    page = {section.title: section for section in show_study(study).sections}
    (table,) = page["Methods"].blocks
    assert [row[1].order for row in table.rows] == [row["clean"]["mean"] for row in results["methods"].values()]
    views = page["Round by round"].blocks[0].views
    rounds = ["accuracy (%)", "test loss", "training loss", "achieved radius"]
    assert list(views) == [*rounds, "agreement: length of the mean update over mean length"]
    fedavg = views["training loss"]["data"][-1]
    assert fedavg["name"] == "FedAvg"
    means = [[row["loss"] for row in lines if row["method"] == "fedavg" and row["round"] == k] for k in (0, 1)]
    assert fedavg["y"] == pytest.approx([sum(values) / 2 for values in means])
    bars = page["Participation"].blocks[0].views["rounds"]["data"]
    asked, lost = (sum(len(row[key]) for row in lines) for key in ("cohort", "excluded"))
    assert sum(map(sum, (bar["y"] for bar in bars))) == asked
    assert sum(bars[1]["y"]) == lost > 0


@pytest.mark.parametrize(
    ("program", "shown"), [("/bin/wafl", "wafl run"), ("/site-packages/wafl/__main__.py", "python -m wafl run")]
)
def test_the_command_that_began_a_study_can_be_repeated(program: str, shown: str, study: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(study, tmp_path / "copy")
    about = StudyFolder(copy).read_about()
    (copy / "about.json").write_bytes(sealed({**about, "command": [program, "run"]}))
    setup = next(section for section in show_study(copy).sections if section.title == "Setup")
    assert shown in [block.text for block in setup.blocks if isinstance(block, Code)]


def test_seeds_alone_draw_no_figure_of_radius_and_gamma(study: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(study, tmp_path / "copy")
    rows = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    swept = [{**row, "gamma": 1.0 + row["seed"], "achieved_radius": 0.1} for row in rows if "radius" in row]
    assert {row["seed"] for row in swept} == {0, 1}
    for chosen, drawn in ((swept, True), ([row for row in swept if row["radius"] == 0.1], False)):
        (copy / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in chosen))
        assert ("Radius and gamma" in [section.title for section in show_study(copy).sections]) == drawn


def test_a_page_of_a_garbage_folder_says_what_is_missing(study: Path, tmp_path: Path) -> None:
    other = shutil.copytree(study, tmp_path / "other")
    for name in ("results.json", "about.json", "config.toml"):
        (other / name).write_bytes(b"\x00{garbage")
    with (other / "metrics.jsonl").open("a") as file:
        file.write('{"method": 3}\n[1, 2]\n{"method": "wafl", "round": "x"}\n{"method": "wafl", "se')
    (other / "nodes.json").write_text('{"nodes": [3]}')
    page = show_study(other)
    assert [section.title for section in page.sections] == ["Round by round", "Participation", "Left out", "Setup"]
    notes = " ".join(note.text for note in page.sections[2].blocks)
    assert all(name in notes for name in ("results.json", "about.json", "config.toml", "nodes"))


def test_flowers_nodes_are_shown(study: Path, tmp_path: Path) -> None:
    other = shutil.copytree(study, tmp_path / "other")
    node = {"id": "7", "name": "<b>ward</b>", "clients": ["a"], "present": False, "last_seen": None, "last_reply": None,
            "bytes_sent": 1, "bytes_received": 1, "replies": 4, "failures": 2, "last_failure": "timeout"}  # fmt: skip
    status = {"updated": "", "state": "training", "run": None, "round": None, "nodes": [node], "left_out": {}}
    (other / "nodes.json").write_text(json.dumps(status))
    (nodes,) = [section for section in show_study(other).sections if section.title == "Nodes"]
    assert [cell.text for cell in nodes.blocks[0].rows[0]] == ["<b>ward</b>", "a", "no", "4", "2", "timeout"]


def test_what_is_no_study_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not a study" in result.output


def test_a_strangers_code_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "oddly.py").write_text(
        "import pathlib, torch, wafl\n"
        "pathlib.Path('ran').touch()\n"
        "def clients():\n"
        "    x = torch.rand(20, 3, generator=torch.Generator().manual_seed(0))\n"
        "    return wafl.Federation.from_arrays([(x, (x.sum(1) > 1.5).long())] * 3)\n"
    )
    monkeypatch.chdir(tmp_path)
    text = EXPERIMENT.replace(
        'dataset = "digits"\nnum_clients = 5\nlabels_per_client = 4\nunseen = 0.2', 'source = "oddly:clients"'
    )
    Path("experiment.toml").write_text(text)
    invoke("run", "experiment.toml")
    Path("ran").unlink()
    Path("oddly.py").write_text(Path("oddly.py").read_text() + "# by somebody else\n")
    output = invoke("report", "runs/few")
    assert not Path("ran").exists()
    assert "--trust" in output
    assert titles(Path("runs/few/report.html"))[-2:] == ["Left out", "Setup"]
    assert "Client by client" not in titles(Path("runs/few/report.html"))


def test_what_is_measured_is_what_wafl_says(tmp_path: Path) -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=4)
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=1.0), rounds=3, local_steps=3, learning_rate=0.3)
    result = {section.title: section for section in measured.measure({"WAFL": run}, clients)}
    (points,) = result["Client by client"].blocks[0].views["clean data"]["data"]
    score = wafl.evaluate(run, clients)
    assert points["y"] == pytest.approx([100 * client.accuracy for client in score.per_client])
    walks = result["Radius"].blocks[0]
    assert isinstance(walks, Walks)
    certified, reached = walks.walks[0].figure["data"]
    assert all(high >= low for high, low in zip(certified["y"], reached["y"], strict=True))
    assert certified["y"][0] == pytest.approx(reached["y"][0]), "without a ball both are the loss"
    few = measured._thinned(clients, 20)
    expected = wafl.certify(run, few, radii=certified["x"], split="test", achieved=False)
    assert certified["y"] == pytest.approx([row.best for row in expected.rows])
    assert result["Data"].blocks[0].views["examples"]["data"][0]["z"][0] == [
        int(count) or None for count in clients.label_counts()[:, 0]
    ]


def scaled(examples: Examples) -> Examples:
    return replace(examples, prepare=Preprocessing(shift=torch.zeros(3), scale=torch.tensor([1.0, 10.0, 100.0])))


def test_moved_features_are_in_their_own_units() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator) * torch.tensor([1.0, 10.0, 100.0])
    y = (x[:, 0] + x[:, 1] / 10 > 0).long()
    clients = wafl.Federation.from_arrays([(x[:30], y[:30]), (x[30:], y[30:])], unit="measured")
    clients = replace(clients, **{part: scaled(getattr(clients, part)) for part in ("train", "test")})
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=5, local_steps=5, learning_rate=0.5)
    section = measured._moves({"FedAvg": run}, clients)
    assert section is not None
    rows = {row[0].text: row[1] for row in section.blocks[0].rows}
    scale = clients.test.prepare.scale
    for index in range(3):
        cell = rows[f"input {index}"]
        assert float(cell.text.split()[0]) == pytest.approx(cell.order * float(scale[index]), rel=0.01)


def test_what_a_ball_cannot_do_is_left_out_and_the_rest_is_shown() -> None:
    words = torch.randint(0, 9, (40, 5), generator=torch.Generator().manual_seed(0))
    clients = wafl.Federation.from_arrays([(words[:20], words[:20, 0] % 2), (words[20:], words[20:, 0] % 2)])
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(), torch.nn.Linear(20, 2))
    run = wafl.fit(model, clients, wafl.FedAvg(), rounds=1, local_steps=1)
    lost: list[str] = []
    result = [section.title for section in measured.measure({"FedAvg": run}, clients, lost=lost.append)]
    assert result == ["Client by client", "Client weights", "Data"]
    assert [why.partition(":")[0] for why in lost] == ["radius by radius", "what the ball moves", "radius and gamma"]


@pytest.mark.slow
def test_results_write_pages_themselves(tmp_path: Path) -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=3, iid=True)
    runs = wafl.sweep(
        wafl.models.mlr(clients),
        clients,
        wafl.WAFL(),
        {"gamma": [1.0, 5.0]},
        rounds=2,
        local_steps=1,
        learning_rate=0.1,
    )
    attack = wafl.PGD(epsilon=0.1, steps=2)
    assert titles(runs[0].report(tmp_path / "run.html")) == ["Round by round", "Client weights", "Setup"]
    assert titles(runs.report(tmp_path / "runs.html")) == ["Round by round", "Client weights", "Setup"]
    comparison = wafl.compare(runs, clients, attacks=[None, attack], attacked=[0.5])
    assert titles(comparison.report(tmp_path / "compare.html")) == ["Methods", "Under attack", "Client by client"]
    certificates = wafl.certify(runs[0], clients, radii=[0.1, 0.2])
    assert titles(certificates.report(tmp_path / "theory.html", other=certificates)) == ["Radius"]
    page = wafl.write_report(runs, clients, tmp_path / "whole.html", attack=attack)
    assert titles(page)[:4] == ["Methods", "Under attack", "Radius", "Client by client"]
    assert len(Reader(page.read_text()).charts()) > 8
