"""Time ``wafl report`` on the study of ``wafl run`` or on an existing one.

    OMP_NUM_THREADS=1 python -m benchmarks.report [--smallest] [--study runs/digits]

Prints the seconds of the first call, and of a second one, which finds all modules loaded; elapsed time and processor
time. Neither includes starting Python. Without ``--study``, seven methods are trained first.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import options
from wafl.cli.main import app

TINY = """
seeds = [0]
data = { num_clients = 3, iid = true }
schedule = { rounds = 2, local_steps = 1, learning_rate = 0.1 }
attack = { steps = 1 }
methods = [{ method = "FedAvg" }]
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--study", type=Path, help="a folder that wafl run has written")
    given = options.read(parser, argv)
    with tempfile.TemporaryDirectory() as folder:
        study = given.study or train(Path(folder), smallest=given.smallest)
        table = Table("wafl report", "seconds", "of the processor", "page, MB")
        page = Path(folder) / "report.html"
        for call in ("first call", "second call"):
            began, spent = time.perf_counter(), time.process_time()
            command("report", str(study), "--output", str(page))
            passed, spent = time.perf_counter() - began, time.process_time() - spent
            table.add_row(call, f"{passed:.1f}", f"{spent:.1f}", f"{page.stat().st_size / 1e6:.1f}")
    Console().print(table)


def train(folder: Path, *, smallest: bool) -> Path:
    """Run the study that is reported, and return its folder."""
    file = folder / "tiny.toml"
    file.write_text(TINY)
    command("run", *([str(file)] if smallest else []), "--output", str(folder / "runs"))
    return next((folder / "runs").iterdir())


def command(*arguments: str) -> None:
    """Call the command line with these arguments, in this process."""
    app(arguments, prog_name="wafl", standalone_mode=False)


if __name__ == "__main__":
    main()
