"""Ways to stop the program of a deployment: let it hang, end it, kill it, or restart it."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress

from wafl.flower.ops.loopback import PATIENCE, READY, Loopback, Program


def pause(program: Program) -> None:
    """Make the program hang: it neither ends nor answers."""
    seen: set[int] = set()
    while new := program._signal(signal.SIGSTOP) - seen:
        seen |= new


def resume(program: Program) -> None:
    program._signal(signal.SIGCONT)


def stop(program: Program, grace: float = 5.0) -> None:
    """Ask the program to end, then kill its remaining processes."""
    if program.returncode() is None:
        program.process.terminate()
        resume(program)
        with suppress(subprocess.TimeoutExpired):
            program.process.wait(grace)
    program.kill()


def restart(program: Program) -> None:
    """Kill its remaining processes, and start the same command again."""
    program.kill()
    program.process = program._start()


def restart_link(loopback: Loopback) -> None:
    """Start the SuperLink again, at the same address and with the same database."""
    restart(loopback.link)
    loopback.link.wait_for(READY, PATIENCE)
