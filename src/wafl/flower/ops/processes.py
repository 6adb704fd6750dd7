"""A program with its own log and session, signaled together with all processes that it has started."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

MARK = "WAFL_PROGRAM"
POLL = 0.02
TAIL = 2000


class ProgramError(RuntimeError):
    """A program ended or failed; the message has the end of its log."""


class Program:
    """A command that runs in a session of its own; its log is appended to."""

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
        """The exit status: None while it is running, and minus a signal's number if that ended it."""
        return self.process.poll()

    def output(self) -> str:
        """What the program and its children have logged since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._offset)
            return log.read().decode(errors="replace")

    def wait_for(self, pattern: str, timeout: float) -> re.Match[str]:
        """The match of a pattern in the log, once there is one; ProgramError if the program ends, or TimeoutError."""
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
        """The message that ``what`` happened to the program, with the end of its log."""
        return f"{Path(self.command[0]).name} {what}. The end of {self.log}:\n{self.output()[-TAIL:]}"

    def kill(self, timeout: float = 10.0) -> None:
        """End it and all processes it has started, at once."""
        deadline = time.monotonic() + timeout
        while self._signal(signal.SIGKILL):
            if time.monotonic() > deadline:
                raise ProgramError(f"{self.command[0]} has processes that cannot be killed: {sorted(self.family())}")
            time.sleep(POLL)
        self.process.wait(timeout)

    def family(self) -> set[int]:
        """The running processes of the program, including those in a session of their own or without a parent."""
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
            except OSError:  # it has just ended, or hides its environment, as Flower's SuperExec does
                continue
        while new := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= new
        return family

    def _signal(self, number: signal.Signals) -> set[int]:
        """Send a signal to the family, which it returns; without /proc, to the process group."""
        family = self.family()
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if self.returncode() is None and not family:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        return family
