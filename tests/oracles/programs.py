"""What can happen to a program of a deployment: it hangs, ends in its own time, or starts again."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress

from wafl.flower.ops.loopback import PATIENCE, READY, Loopback, Program


def pause(program: Program) -> None:
    """Make it hang: it neither ends nor answers."""
    seen: set[int] = set()
    while new := program._signal(signal.SIGSTOP) - seen:
        seen |= new


def resume(program: Program) -> None:
    program._signal(signal.SIGCONT)


def stop(program: Program, grace: float = 5.0) -> None:
    """Ask it to end, then kill whatever is left."""
    if program.returncode() is None:
        program.process.terminate()
        resume(program)
        with suppress(subprocess.TimeoutExpired):
            program.process.wait(grace)
    program.kill()


def restart(program: Program) -> None:
    """Kill what is left of it, and start the same command again."""
    program.kill()
    program.process = program._start()


def restart_link(loopback: Loopback) -> None:
    """Start the SuperLink again, at the same address and with the same database."""
    restart(loopback.link)
    loopback.link.wait_for(READY, PATIENCE)
