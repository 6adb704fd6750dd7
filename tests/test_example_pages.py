"""Tests of the commands on the pages of the Flower examples, in a shell and with real processes.

The commands are read from the bash blocks of each README, so a page and its test cannot differ.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from wafl.flower.ops.loopback import Program

ROOT = Path(__file__).parents[1]
QUICKSTART, HOSPITALS = ROOT / "examples" / "flower_quickstart", ROOT / "examples" / "flower_hospitals"

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
        started = Shell(tmp_path, ray_folder, reserved.getsockname()[1])
        try:
            yield started
        finally:
            for program in started.programs:
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
    trained = shell.run([enter, f"{train} {one_round}"], timeout=600.0)
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
    shell.wait_until_nothing_runs(timeout=600.0)  # Ray's agents notice only after minutes that Ray has ended


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
