"""Run programs with separate logs, complete Flower runs, and a local SuperLink that simulates nodes."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count as numbers
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from uuid import uuid4

from wafl.flower.ops.deployment import QUIET as DEPLOYED

MARK = "WAFL_PROGRAM"
POLL = 0.02
TAIL = 2000


class ProgramError(RuntimeError):
    """A program ended or failed; the message contains the end of its log."""


class Program:
    """A command that runs in a separate session; its log is appended to."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.command, self.log = list(command), log
        self._mark = f"{MARK}={uuid4().hex}"
        self._environment = dict(environment) | dict([self._mark.split("=")])
        self._offset = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self._offset = log.tell()
            return subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def returncode(self) -> int | None:
        """Return the exit status: None while the program runs, and minus the number of a signal that ended it."""
        return self.process.poll()

    def output(self) -> str:
        """Return the log of the program and its children since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._offset)
            return log.read().decode(errors="replace")

    def wait_for(self, pattern: str, timeout: float) -> re.Match[str]:
        """Return the match of a pattern in the log, once there is one.

        Raises ProgramError if the program ends, or TimeoutError.
        """
        deadline = time.monotonic() + timeout
        while True:
            ended = self.returncode() is not None
            if match := re.search(pattern, self.output()):
                return match
            if ended:
                raise ProgramError(self.complaint(f"ended with status {self.returncode()}"))
            if time.monotonic() > deadline:
                raise TimeoutError(self.complaint(f"did not say {pattern!r} within {timeout:g} s"))
            time.sleep(POLL)

    def complaint(self, what: str) -> str:
        """Return the message that ``what`` happened to the program, with the end of its log."""
        return f"{Path(self.command[0]).name} {what}. The end of {self.log}:\n{self.output()[-TAIL:]}"

    def kill(self, timeout: float = 10.0) -> None:
        """End the program and all processes it has started, at once."""
        deadline = time.monotonic() + timeout
        while self._signal(signal.SIGKILL):
            if time.monotonic() > deadline:
                raise ProgramError(f"{self.command[0]} has processes that cannot be killed: {sorted(self.family())}")
            time.sleep(POLL)
        self.process.wait(timeout)

    def family(self) -> set[int]:
        """Return the running processes of the program, also in separate sessions or without a parent."""
        parents: dict[int, int] = {}
        family: set[int] = set()
        mark = self._mark.encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if state == "Z":
                    continue
                parents[int(folder.name)] = int(parent)
                if int(session) == self.process.pid:
                    family.add(int(folder.name))
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    family.add(int(folder.name))
            except OSError:  # the process has just ended, or hides its environment, as Flower's SuperExec does
                continue
        while new := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= new
        return family

    def _signal(self, number: signal.Signals) -> set[int]:
        """Send a signal to the family and return it; without /proc, to the process group."""
        family = self.family()
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if self.returncode() is None and not family:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        return family


HOST = "127.0.0.1"
QUIET = {
    **DEPLOYED,
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",  # seconds; the default, 1, delays every message
    "PYTHONUNBUFFERED": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
FOREIGN = re.compile(r"(https?|all|no)_proxy|ray_address", re.IGNORECASE)
READY, SUBMITTED = "Uvicorn running on", r"Successfully started run (\d+).*\n"
PATIENCE = 60.0
PAUSE = 1.0


class RunHandle:
    """A Flower run that was submitted."""

    def __init__(self, flwr: Callable[..., dict[str, Any]], command: Program, id: int) -> None:
        self.id = id
        self._flwr, self._command = flwr, command

    def status(self) -> str:
        """Return ``pending``, ``starting``, ``running``, or ``finished:`` with its outcome.

        The outcomes are ``completed``, ``failed`` and ``stopped``.
        """
        (run,) = self._flwr("list", "--run-id", str(self.id))["runs"]
        return run["status"]

    def done(self) -> bool:
        """Return whether the log of the Flower run has ended, and with it the Flower run or the SuperLink."""
        return self._command.returncode() is not None

    def wait(self, timeout: float) -> str:
        """Return the status of the finished run.

        Raises TimeoutError if it takes longer, and ProgramError if no SuperLink answers.
        """
        deadline = time.monotonic() + timeout
        with suppress(subprocess.TimeoutExpired):
            self._command.process.wait(timeout)  # it streams the log until the Flower run or the SuperLink ends
        while not (status := self.status()).startswith("finished"):
            if time.monotonic() > deadline:
                raise TimeoutError(self._command.complaint(f"has a Flower run that is {status} after {timeout:g} s"))
            time.sleep(PAUSE)
        return status

    def log(self) -> str:
        """Return the ServerApp's log of the Flower run so far."""
        return self._command.output()


class Loopback:
    """A SuperLink on 127.0.0.1 that simulates nodes; it and all its processes end with the ``with`` block.

    The folder contains the logs, the database and ``flwr/config.toml``: with FLWR_HOME=<folder>/flwr, Flower's own
    commands use this SuperLink. All programs get the variables of the ``environment``.
    """

    def __init__(self, folder: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder.resolve()
        self._variables = dict(environment or {})
        self._options = ["--insecure", "--simulation", "--database", str(self.folder / "state.db")]
        self._connection: dict[str, str | float] = {"insecure": True}
        self._runs = numbers(1)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._stack = stack
            # Ray's sockets need a short path. A separate path keeps Ray from joining a cluster that is already running.
            self._temporary = stack.enter_context(TemporaryDirectory(prefix="wafl-", ignore_cleanup_errors=True))
            self.link = self._start_link()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def submit(
        self,
        app: Path,
        config: Mapping[str, str | float] | None = None,
        federation: Mapping[str, str | float] | None = None,
    ) -> RunHandle:
        """Start a Flower run of the app in that folder, with these values for its run config and for the simulation."""
        options = run_config(settings(config or {}))
        options += [f"--federation-config={pair}" for pair in settings(federation or {})]
        name = f"run-{next(self._runs)}"
        command = self._start(name, "flwr", "run", str(app), "--stream", *options, home="flwr")
        return RunHandle(self.flwr, command, int(command.wait_for(SUBMITTED, PATIENCE)[1]))

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run one of Flower's commands and return its JSON."""
        return _flwr(arguments, self._environment("flwr"))

    def _start_link(self, attempts: int = 3) -> Program:
        port = self._reserve_port()
        self.address = f"{HOST}:{port}"
        link = self._start("superlink", "flower-superlink", "--host", HOST, "--port", str(port), *self._options)
        try:
            link.wait_for(READY, PATIENCE)
        except ProgramError as error:
            if "address already in use" in str(error) and attempts > 1:
                return self._start_link(attempts - 1)
            raise
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        connection = settings({"address": self.address, **self._connection})
        text = ["[superlink]", 'default = "loopback"', "[superlink.loopback]", *connection]
        (home / "config.toml").write_text("\n".join(text) + "\n")
        return link

    def _start(self, name: str, tool: str, *arguments: str, home: str | None = None) -> Program:
        program = Program([find_tool(tool), *arguments], self.folder / f"{name}.log", self._environment(home or name))
        self._stack.callback(program.kill)
        return program

    def _environment(self, home: str) -> dict[str, str]:
        """Return the environment of a program, with a separate home for Flower, as if on a separate machine."""
        inherited = {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        private = {"FLWR_HOME": str(self.folder / home), "RAY_TMPDIR": self._temporary, "PATH": path}
        return inherited | QUIET | self._variables | private

    def _reserve_port(self) -> int:
        """Reserve a free port with a bound socket, so that no other program gets the port."""
        held = self._stack.enter_context(socket.socket())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HOST, 0))
        return held.getsockname()[1]


def settings(values: Mapping[str, str | float]) -> list[str]:
    r"""Return ``key=value`` pairs in Flower's form: TOML, except that a quote always ends a string.

    >>> settings({"rounds": 3, "name": 'a "b"', "eta": 1e-5, "robust": True})
    ['rounds=3', 'name="a \\u0022b\\u0022"', 'eta=1e-05', 'robust=true']
    """
    return [f"{key}={_value(value)}" for key, value in values.items()]


def _value(value: str | float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    inner = json.dumps(value, ensure_ascii=False)[1:-1]
    return '"' + inner.replace('\\"', "\\u0022").replace("\x7f", "\\u007f") + '"'


def find_tool(name: str) -> str:
    """Return Flower's command next to this Python, otherwise the first one on the path."""
    sibling = Path(sys.executable).parent / name
    tool = str(sibling) if sibling.exists() else shutil.which(name)
    if tool is None:
        raise ValueError(f"{name} is not installed: pip install 'wafl-learn[flower]'")
    return tool


def run_config(config: Sequence[str]) -> list[str]:
    """Return the options of ``flwr run`` for these values, or for one file of them.

    Flower reads each option's keys as tables and lets a table replace the one of an earlier option, so there is one.

    >>> run_config(["schedule.rounds=3", "schedule.cohort=2"])
    ['--run-config=schedule.rounds=3 schedule.cohort=2']
    """
    if len(config) > 1 and (files := [value for value in config if value.endswith(".toml")]):
        raise ValueError(f"-c {files[0]} is a file: pass only the file, or write all values as KEY=VALUE")
    return [f"--run-config={' '.join(config)}"] if config else []


def submit(app: Path, superlink: str | None, config: Sequence[str], show: Callable[[str], None]) -> str:
    """Run an app, and return the outcome of its Flower run; ``show`` receives the log's lines.

    The outcome is completed, failed or stopped. Flower's own command always ends with status 0.
    """
    where = [] if superlink is None else [superlink]
    command, output = [find_tool("flwr"), "run", str(app), *where, "--stream", *run_config(config)], ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for text in process.stdout:
            show(text.rstrip("\n"))
            output += text if re.search(SUBMITTED, output) is None else ""
    begun = re.search(SUBMITTED, output)
    if begun is None:
        raise OSError(f"flwr run {app} started no Flower run; it said:\n{output.strip()}")
    try:
        (run,) = _flwr(["list", *where, "--run-id", begun[1]])["runs"]
        return str(run["status"]).removeprefix("finished:")
    except (ProgramError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise OSError(f"the end of the Flower run is not known: {error}") from error


def _flwr(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run one of Flower's commands and return the JSON that it prints; raise ProgramError if it fails."""
    command = [find_tool("flwr"), *arguments, "--format", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    printed: Any = None
    with suppress(ValueError):
        printed = json.loads(done.stdout)
    if not isinstance(printed, dict) or not printed.get("success"):
        raise ProgramError(f"flwr {' '.join(arguments)} failed: {done.stdout}{done.stderr}")
    return printed
