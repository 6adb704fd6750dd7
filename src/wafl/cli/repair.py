"""``wafl repair``: make a damaged study whole again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wafl.cli.shared import Trust, reading


def repair(
    folder: Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of a study, such as runs/digits.")],
    trust: Trust = False,
) -> None:
    """Keep what is sound of a damaged study, and say what is dropped.

    Results and metrics are made again from the saved runs. A method one of whose runs is damaged, and whatever has no
    sound checkpoint, is trained again by `wafl resume`, to the same numbers.
    """
    from wafl.cli.terminal import make_console
    from wafl.runs.repair import repair as repair_study
    from wafl.runs.study import Study

    with reading(trust):
        done = repair_study(Study.resume(folder))
    console = make_console()
    for title, lines in (("Dropped", done.dropped), ("Made again", done.made)):
        for line in lines:
            console.print(f"{title}: {line}", markup=False, soft_wrap=True)
    if not done.dropped and not done.made:
        console.print(f"{folder} is sound: nothing was changed.", markup=False, soft_wrap=True)
    if done.pending:
        names = ", ".join(done.pending)
        console.print(f"Still to train: {names}. To do so: wafl resume {folder}", markup=False, soft_wrap=True)
