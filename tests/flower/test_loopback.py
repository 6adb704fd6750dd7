"""Flower's programs on this machine: real processes, all of which are gone in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from examples.flower_hospitals.deployed import Deployed

from tests.oracles.programs import pause, restart, resume, stop
from wafl.flower.ops.loopback import Program, ProgramError, settings
from wafl.flower.ops.tls import make_certificates

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are looked for in /proc")

AWKWARD = "a 'b' \"c\" \\\n\t= [x] é🙂\x7f.toml"


def processes_of(folder: Path) -> list[str]:
    """Processes with a FLWR_HOME in the folder; zombies have no environment left."""
    collected: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"FLWR_HOME={folder}/".encode() in (entry / "environ").read_bytes():
                collected.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return collected


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def program(tmp_path: Path, script: str) -> Program:
    return Program(["sh", "-c", script], tmp_path / "log", os.environ)


def states(pids: set[int]) -> set[str]:
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


@pytest.mark.slow
def test_a_superlink_that_does_not_start_says_why(tmp_path: Path):
    certificates = make_certificates(tmp_path / "c")
    certificates.server_cert.write_text("nonsense")
    with pytest.raises(ProgramError, match=r"flower-superlink ended with status 1(.|\n)*SSL"):
        Deployed(tmp_path / "l", certificates=certificates).__enter__()
    assert processes_of(tmp_path) == []


def test_invalid_node_names_and_keys_are_refused(tmp_path: Path):
    loopback = Deployed(tmp_path)
    with pytest.raises(ValueError, match=r"node '\.\./a': give a new name of letters"):
        loopback.add_node("../a")
    with pytest.raises(ValueError, match="has the key 'a' without certificates"):
        loopback.add_node("a", key="a")


@pytest.mark.processes
def test_flower_reads_what_settings_writes():
    values = {"text": AWKWARD, "empty": "", "rate": 1e-5, "big": 10**15, "inf": float("inf"), "on": True, "a.b": -1}
    code = "import json, sys; from flwr.common.config import parse_config_args as p; a = sys.argv[1:]"
    command = [sys.executable, "-c", f"{code}; print(json.dumps([p(a), p([' '.join(a)])]))", *settings(values)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == [values, values]


def test_a_program_is_killed_with_children_that_hide(tmp_path: Path):
    """In their own session and without an environment, as Flower's SuperExec looks to all but the superuser."""
    parent = program(tmp_path, "setsid env -i sleep 600 & exec sleep 600")
    eventually(lambda: len(parent.family()) == 2)
    family = parent.family()
    parent.kill()
    assert parent.returncode() == -signal.SIGKILL
    eventually(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() and states({pid}) != {"Z"} for pid in family))


def test_a_program_is_killed_with_children_that_outlive_it(tmp_path: Path):
    parent = program(tmp_path, "setsid sleep 600 & exit 3")
    assert parent.process.wait(10) == 3
    eventually(lambda: len(parent.family()) == 1)
    parent.kill()
    assert parent.family() == set()


def test_a_program_that_does_not_stop_is_killed(tmp_path: Path):
    deaf = program(tmp_path, "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    deaf.wait_for("ready", 10)
    stop(deaf, grace=0.2)
    assert deaf.returncode() == -signal.SIGKILL
    assert deaf.family() == set()


def test_a_program_can_be_paused_resumed_and_stopped_while_paused(tmp_path: Path):
    parent = program(tmp_path, "sleep 600 & exec sleep 600")
    eventually(lambda: len(parent.family()) == 2)
    pause(parent)
    eventually(lambda: states(parent.family()) == {"T"})
    resume(parent)
    eventually(lambda: states(parent.family()) == {"S"})
    pause(parent)
    stop(parent)
    assert parent.returncode() == -signal.SIGTERM


def test_a_programs_output_is_that_of_its_last_start(tmp_path: Path):
    speaker = program(tmp_path, "echo one 12; exit 4")
    assert speaker.wait_for(r"one (\d+)\n", 10)[1] == "12"
    with pytest.raises(ProgramError, match=r"sh ended with status 4\. The end of .*log:\none 12"):
        speaker.wait_for("two", 10)
    restart(speaker)
    speaker.process.wait(10)
    assert speaker.output() == "one 12\n"
    assert speaker.log.read_text() == "one 12\n" * 2
    silent = program(tmp_path, "exec sleep 600")
    with pytest.raises(TimeoutError, match=r"did not say 'x' within 0\.1 s"):
        silent.wait_for("x", 0.1)
    silent.kill()
