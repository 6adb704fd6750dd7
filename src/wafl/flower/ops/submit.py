"""A Flower run from its start to its end, with a status that scripts can trust: Flower's own command always gives 0."""

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from wafl.flower.ops.loopback import SUBMITTED, find_tool


def submit(app: Path, superlink: str | None, config: Sequence[str], show: Callable[[str], None]) -> str:
    """How a Flower run of an app ended: completed, failed or stopped; ``show`` gets the lines of its log."""
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
    command = [find_tool("flwr"), "list", *where, "--run-id", begun[1], "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        (run,) = json.loads(done.stdout)["runs"]
        return str(run["status"]).removeprefix("finished:")
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"the end of the Flower run is not known: {done.stdout}{done.stderr}") from error
