"""``wafl leaderboard``: methods on natural clients."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from wafl.base.files import write_whole
from wafl.cli.shared import one_line_errors


def leaderboard(
    data: Annotated[list[str] | None, Option(help="A data set; repeat for several. Default: all.")] = None,
    scale: Annotated[str, Option(help="full, as it is registered, or smoke, a few seconds.")] = "full",
    processes: Annotated[int, Option(min=1, help="How many work at once.")] = 1,
    done: Annotated[bool, Option("--done", help="Train nothing: the numbers of what the working folder has.")] = False,
    output: Annotated[Path, Option(help="The numbers to write.")] = Path("leaderboard.json"),
    work: Annotated[Path, Option(help="Where what is done is kept.")] = Path("runs/leaderboard"),
) -> None:
    """Rank methods on natural clients: people and places that no training has seen."""
    from wafl.lab.leaderboard.measure import leaderboard as make

    with one_line_errors():
        numbers = make(data or [], scale, work, 0 if done else processes, typer.echo)
        write_whole(output, json.dumps(numbers, indent=1).encode())
    typer.echo(f"Numbers: {output}")
