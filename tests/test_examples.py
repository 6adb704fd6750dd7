"""Tests of the Flower examples: their code in this process, and the commands of their pages in a shell.

The commands are read from the bash blocks of each README, so a page and its test cannot differ.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import wafl
from wafl.flower.ops.processes import Program

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
QUICKSTART, HOSPITALS = EXAMPLES / "flower_quickstart", EXAMPLES / "flower_hospitals"

Load = Callable[[Path, str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """A module of an example, which finds its neighbors as it does when it is run."""
    before = set(sys.modules)

    def module(folder: Path, name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(folder))
        return importlib.import_module(name)

    yield module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(EXAMPLES)):
            del sys.modules[name]


def test_no_example_is_left_out() -> None:
    assert {path for path in EXAMPLES.iterdir() if path.is_dir()} == {QUICKSTART, HOSPITALS, EXAMPLES / "gallery"}, (
        "test the new one here; tests/test_gallery.py has the gallery"
    )


# The commands of the pages

SUPERLINK_PORT = "39091"
FINISHED = "Final results:"
BUSY = "Failed to start local SuperLink within"


def page_commands(example: Path) -> list[str]:
    """Return the commands of an example's page in order, without its first bash block, the installation."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", (example / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert "pip install" in blocks[0]
    return [line for block in blocks[1:] for line in block.splitlines()]


class Shell:
    """A shell in the root of the clone, with its environment active, that can reach no package index."""

    def __init__(self, folder: Path, ray_folder: str, port: int) -> None:
        self.folder, self.port = folder, port
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR_", "RAY_"))}
        self.environment = {
            **inherited,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_TMPDIR": ray_folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "TMPDIR": str(folder),
            "UV_OFFLINE": "1",
        }
        self.programs: list[Program] = []

    def start(self, commands: Sequence[str]) -> Program:
        """Start a script of these commands, which ends at the first one that fails."""
        script = self.folder / f"page-{len(self.programs)}.sh"
        text = "\n".join([f"cd {shlex.quote(str(ROOT))}", *commands, ""])
        script.write_text(text.replace(SUPERLINK_PORT, str(self.port)))
        bash = shutil.which("bash")
        assert bash is not None
        self.programs.append(Program([bash, "-ex", str(script)], script.with_suffix(".log"), self.environment))
        return self.programs[-1]

    def run(self, commands: Sequence[str], timeout: float) -> Program:
        """Run a script of these commands; if Flower gave up on a busy machine, run it again as the page says."""
        program = self.start(commands)
        program.process.wait(timeout)
        if BUSY in program.output():
            program = self.start(commands)
            program.process.wait(timeout)
        return program

    def wait_until_nothing_runs(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while running := set[int]().union(*(program.family() for program in self.programs)):
            assert time.monotonic() < deadline, f"still running: {[command_line(pid) for pid in running]}"
            time.sleep(0.1)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return f"process {pid}, which has just ended"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    # Ray's sockets need a short path. The bound socket keeps other programs from taking the port.
    with TemporaryDirectory(prefix="wafl-", ignore_cleanup_errors=True) as ray_folder, socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        found = Shell(tmp_path, ray_folder, reserved.getsockname()[1])
        try:
            yield found
        finally:
            for program in found.programs:
                program.kill()


def quickstart_commands() -> tuple[str, str, str, str]:
    """Return the four commands of the page: change the folder, train, train with privacy, stop the SuperLink."""
    enter, train, private, stop = page_commands(QUICKSTART)
    assert enter == "cd examples/flower_quickstart"
    assert train.startswith("flwr run . ")
    assert private == f"{train} -c 'dp=true'"
    assert stop.startswith("pkill ")
    return enter, train, private, stop


@pytest.mark.processes
def test_the_quickstart_trains_and_stops_as_its_page_says(shell: Shell) -> None:
    enter, train, _, stop = quickstart_commands()
    one_round = "-c 'num-server-rounds=1'"
    assert f"`{one_round}`" in (QUICKSTART / "README.md").read_text()
    trained = shell.run([enter, f"{train} {one_round}"], timeout=240.0)
    assert trained.returncode() == 0, trained.output()
    assert FINISHED in trained.output()
    assert "eval_acc_moved" in trained.output()
    assert any("flower-superlink" in command_line(pid) for pid in trained.family()), "nothing is left to stop"
    stopped = shell.run([stop], timeout=30.0)
    assert stopped.returncode() == 0, stopped.output()
    shell.wait_until_nothing_runs(timeout=30.0)


@pytest.mark.slow
def test_the_whole_page_of_the_quickstart_runs_and_prints_the_accuracies_of_its_table(shell: Shell) -> None:
    done = shell.run(quickstart_commands(), timeout=900.0)
    assert done.returncode() == 0, done.output()
    assert done.output().count(FINISHED) == 2
    assert done.output().count("Starting local SuperLink") == 1, "the second run uses the SuperLink of the first"
    row = re.search(r"\| `gamma=2.0` \| ([\d.]+) % \| ([\d.]+) %", (QUICKSTART / "README.md").read_text())
    assert row is not None
    printed = re.findall(r"{'eval_acc': ([\d.]+), 'eval_acc_moved': ([\d.]+)}", done.output())[9]
    for accuracy, of_page, standard_error in zip(printed, row.groups(), (1.4, 2.6), strict=True):
        assert 100 * float(accuracy) == pytest.approx(float(of_page), abs=standard_error)
    shell.wait_until_nothing_runs(timeout=30.0)


@pytest.mark.slow
def test_after_ctrl_c_the_quickstart_goes_on_until_the_page_stops_it(shell: Shell) -> None:
    enter, train, _, stop = quickstart_commands()
    program = shell.start([enter, f"{train} -c 'num-server-rounds=1000'"])
    program.wait_for(r"ROUND 2/1000", 240.0)
    os.killpg(program.process.pid, signal.SIGINT)
    program.process.wait(30.0)
    listed = shell.run([enter, "flwr list --format json"], timeout=60.0)
    assert '"status": "running"' in listed.output()
    run_id = re.search(r'"run-id": "(\d+)"', listed.output())
    assert run_id is not None
    ended = shell.run([enter, f"flwr stop {run_id[1]}", "flwr list --format json"], timeout=60.0)
    assert '"status": "finished:stopped"' in ended.output()
    assert shell.run([stop], timeout=30.0).returncode() == 0
    shell.wait_until_nothing_runs(timeout=240.0)  # Ray's agents notice only after minutes that Ray has ended


@pytest.mark.slow
def test_the_quickstart_in_a_wrong_folder_ends_with_an_error(shell: Shell) -> None:
    _, train, _, _ = quickstart_commands()
    done = shell.run([f"cd {shell.folder}", train], timeout=60.0)
    assert done.returncode() != 0
    problem = "Failed to load Flower App configuration"
    assert problem in done.output()
    assert f"`{problem}`" in (QUICKSTART / "README.md").read_text()


def hospitals_command() -> str:
    """Return the only command of the page."""
    (command,) = page_commands(HOSPITALS)
    return command


@pytest.mark.processes
def test_the_hospitals_command_starts_where_its_page_says(shell: Shell) -> None:
    """The command runs in a shell as far as its check of the folder, before it starts any Flower process."""
    done = shell.run([f"{hospitals_command()} --folder {shell.folder}"], timeout=120.0)
    assert done.returncode() == 1
    assert "choose another with --folder" in done.output()
    shell.wait_until_nothing_runs(timeout=10.0)


@pytest.mark.slow
def test_the_whole_page_of_the_hospitals_runs_and_leaves_nothing_running(shell: Shell) -> None:
    done = shell.run([f"{hospitals_command()} --rounds 1"], timeout=900.0)
    assert done.returncode() == 0, done.output()
    assert "the models are the same, bit for bit" in done.output()
    shell.wait_until_nothing_runs(timeout=10.0)


@pytest.mark.slow
def test_ctrl_c_stops_the_hospitals_and_all_their_processes(shell: Shell) -> None:
    program = shell.start([hospitals_command()])
    program.wait_for(r"round 0: loss", 300.0)
    os.killpg(program.process.pid, signal.SIGINT)
    program.process.wait(60.0)
    assert "Traceback" not in program.output()
    shell.wait_until_nothing_runs(timeout=10.0)


# The quickstart


class Grid:
    """Flower's grid, with nodes in this process."""

    def __init__(self, client: ModuleType, nodes: int, config: dict[str, Any]) -> None:
        self.client, self.nodes, self.config = client, nodes, config
        self.metrics: list[dict[str, Any]] = []

    def get_node_ids(self) -> range:
        return range(1, self.nodes + 1)

    def send_and_receive(self, messages: list[Message], timeout: float) -> list[Message]:
        replies: list[Message] = []
        for message in messages:
            node = message.metadata.dst_node_id
            place = {"partition-id": node - 1, "num-partitions": self.nodes}
            kind = message.metadata.message_type
            reply = getattr(self.client, kind)(message, Context(1, node, place, RecordDict(), self.config))
            self.metrics.append({"kind": kind, **reply.content.metric_records["metrics"]})
            replies.append(reply)
        return replies


@pytest.mark.parametrize("private", [False, True])
def test_the_quickstart_learns_in_one_process(private: bool, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_task_id", "_run_id", "_node_id"):  # outside a task of Flower's no message can be made
        monkeypatch.setattr(TaskIdentity, name, 1)
    described = tomllib.loads((QUICKSTART / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    config = {**described["config"], "num-server-rounds": 2, "local-epochs": 1, "batch-size": 64, "dp": private}
    assert described["components"] == {"serverapp": "server_app:app", "clientapp": "client_app:app"}
    server, client = load(QUICKSTART, "server_app"), load(QUICKSTART, "client_app")
    grid = Grid(client, 2, config)
    server.main(grid, Context(1, 0, {}, RecordDict(), config))
    trained = [metrics for metrics in grid.metrics if metrics["kind"] == "train"]
    tested = [metrics for metrics in grid.metrics if metrics["kind"] == "evaluate"]
    assert len(trained) == len(tested) == 4, "two rounds of two clients"
    assert trained[-1]["train_loss"] < trained[0]["train_loss"]
    assert trained[0]["transport-cost"] > 0.0, "examples are moved"
    assert tested[-1]["eval_acc"] > (0.2 if private else 0.6)
    assert tested[-1]["eval_acc_moved"] <= tested[-1]["eval_acc"]


# The hospitals


def test_hospitals_share_no_tumor_and_have_the_microscopes_they_are_said_to_have(load: Load) -> None:
    data = load(HOSPITALS, "data")
    hospitals = data.make_hospitals(0)
    assert [hospital.name for hospital in hospitals] == [f"hospital-{number}" for number in range(1, 6)]
    assert {len(hospital.y) for hospital in hospitals} == {113}
    assert [round(float(hospital.y.mean()), 2) for hospital in hospitals] == pytest.approx(data.MALIGNANT, abs=0.01)
    true = np.concatenate([h.measured / e**data._DIMENSION for h, e in zip(hospitals, (1, 1, 1, 1.1, 1), strict=True)])
    published = {tuple(row) for row in data._X.round(6)}
    assert len({tuple(row) for row in true.round(6)} & published) == 5 * 113
    area = list(data._TUMORS.feature_names).index("mean area")
    seen, magnified = (hospitals[4].seen(factor)[:, area] for factor in (1.0, 1.3))
    shown, was = (part * data._SCALE[area] + data._CENTER[area] for part in (magnified, seen))
    np.testing.assert_allclose(shown, 1.69 * was, rtol=1e-4)


def test_the_hospitals_example_reports_what_the_nodes_trained(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = load(HOSPITALS, "run")

    def deploy(folder: Path, experiment: Any, hospitals: Any) -> None:
        """Train in this process, and save as the ServerApp does."""
        trained: dict[str, list[wafl.Run]] = run.train_here(experiment, hospitals, experiment.seeds)
        for name, runs in trained.items():
            place = folder / "run" / ("fedavg" if name == "FedAvg" else f"wafl-gamma={float(name.split()[-1])}")
            for seed, model in zip(experiment.seeds, runs, strict=True):
                model.save(place if seed == experiment.seeds[0] else place / f"seed-{seed}")

    monkeypatch.setattr(run, "deploy", deploy)
    monkeypatch.setattr(run, "DRAWS", range(2))
    assert run.main(["--rounds", "1", "--folder", str(tmp_path / "new")]) == 0
    text = capsys.readouterr().out
    assert "the models are the same, bit for bit" in text
    assert len(re.findall(r"^ *5, x 1\.3 ", text, re.MULTILINE)) == 2, "the fifth hospital is in both tables"
    assert run.main(["--folder", str(tmp_path / "new")]) == 1, "a folder that is taken"
    assert "choose another with --folder" in capsys.readouterr().err


@pytest.mark.slow
def test_the_hospitals_settings_are_chosen_again(
    load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = load(HOSPITALS, "data")
    monkeypatch.setattr(data, "TUNING", range(100, 101))
    data.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 30
    assert lines[0].startswith("FedAvg learning_rate ")


@pytest.mark.slow
def test_the_hospitals_train_on_flower(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = load(HOSPITALS, "run")
    monkeypatch.setattr(run, "DRAWS", range(2))
    status = run.main(["--rounds", "1", "--folder", str(tmp_path / "new")])
    said = capsys.readouterr()
    assert status == 0, said.err
    assert "the models are the same, bit for bit" in said.out
