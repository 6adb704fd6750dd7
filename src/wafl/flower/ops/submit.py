"""A Flower run from its start to its end, with a status that scripts can trust: Flower's own command always gives 0."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from wafl.flower.ops.loopback import SUBMITTED, find_tool


def submit(app: Path, superlink: str | None, config: Sequence[str], show: Callable[[str], None]) -> str:
    """Start the app, show its log until it ends, and return how: completed, failed or stopped.

    Args:
        app: the folder of the app.
        superlink: the connection of Flower's configuration to use; None for its default.
        config: values for the run config, such as ``schedule.rounds=50``.
        show: called with each line of the log.
    """
    where = [] if superlink is None else [superlink]
    values = [f"--run-config={pair}" for pair in config]
    command, said = [find_tool("flwr"), "run", str(app), *where, "--stream", *values], ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            show(line.rstrip("\n"))
            said += line if re.search(SUBMITTED, said) is None else ""
    begun = re.search(SUBMITTED, said)
    if begun is None:
        raise OSError(f"flwr run {app} started no Flower run; it said:\n{said.strip()}")
    return _status([find_tool("flwr"), "list", *where, "--run-id", begun[1], "--format", "json"])


def _status(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        (run,) = json.loads(done.stdout)["runs"]
        return str(run["status"]).removeprefix("finished:")
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"the end of the Flower run is not known: {done.stdout}{done.stderr}") from error
