"""``wafl leaderboard``: methods on natural clients."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markdown import Markdown
from typer import Option

from wafl.base.files import write_whole
from wafl.cli.shared import one_line_errors
from wafl.cli.terminal import make_console


def leaderboard(
    data: Annotated[list[str] | None, Option(help="A data set; repeat for several. Default: all.")] = None,
    methods: Annotated[list[str] | None, Option(help="A method; repeat for several. Default: ten of them.")] = None,
    trials: Annotated[int, Option(min=4, help="Settings of each method that tuning tries.")] = 8,
    splits: Annotated[int, Option(min=2, help="Splits into seen and unseen clients.")] = 5,
    rounds: Annotated[int, Option(min=1, help="Communication rounds of each run.")] = 40,
    model: Annotated[str, Option(help="mlr, or mlp with one hidden layer.")] = "mlr",
    done: Annotated[bool, Option("--done", help="Train nothing: the table of what the working folder has.")] = False,
    output: Annotated[Path, Option(help="The numbers to write.")] = Path("leaderboard.json"),
    work: Annotated[Path, Option(help="Where what is done is kept.")] = Path("runs/leaderboard"),
) -> None:
    """Rank methods on natural clients: people, places and domains that no training has seen.

    Every method is tuned with the same number of trials, once per data set, on clients that no split leaves out. After
    an interruption, the same command goes on; given again, it gives the same numbers, bit for bit. Data sets that are
    not here are named and left out; nothing is downloaded.
    """
    from wafl.lab.leaderboard.measure import TEN, Effort, finished
    from wafl.lab.leaderboard.measure import leaderboard as make
    from wafl.lab.leaderboard.tables import of_leaderboard
    from wafl.lab.leaderboard.tasks import DATA

    with one_line_errors():
        if model not in ("mlr", "mlp"):
            raise ValueError(f"--model {model} must be mlr or mlp")
        kind: Any = model
        effort = Effort(trials=trials, splits=splits, rounds=rounds, model=kind)
        what = list(data or DATA), list(methods or TEN), effort, work
        numbers = finished(*what) if done else make(*what, typer.echo)
        write_whole(output, json.dumps(numbers, indent=1).encode())
        make_console().print(Markdown(of_leaderboard(numbers)))
    typer.echo(f"Numbers: {output}")
