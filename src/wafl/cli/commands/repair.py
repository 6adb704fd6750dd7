"""``wafl repair``: make a damaged study whole again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from wafl.cli.shared import Trust, reading

WHY = (
    "The runs of a method are computed together, and how many they are decides how sums are rounded: trained alone, "
    "the damaged one could differ in its last bits"
)


def repair(
    folder: Annotated[Path, Argument(metavar="STUDY", help="The folder of a study, such as runs/digits.")],
    trust: Trust = False,
) -> None:
    """Keep what is sound of a damaged study, and say what is dropped.

    Results and metrics are made again from the saved runs. A method one of whose runs is damaged, and whatever has no
    sound checkpoint, is trained again by `wafl resume`, to the same numbers. Nodes of Flower are not needed; a study on
    them goes on with `flwr run`.
    """
    from wafl.cli.terminal import make_console
    from wafl.studies.folder import StudyFolder
    from wafl.studies.repair import repair as repair_study
    from wafl.studies.roster import clients_by_name
    from wafl.studies.study import Study

    with reading(trust):
        study = Study.resume(folder, clients_by_name(StudyFolder.existing(folder)))
        done = repair_study(study)
    console = make_console()
    for title, lines in (("Dropped", done.dropped), ("Made again", done.made)):
        for line in lines:
            console.print(f"{title}: {line}", markup=False, soft_wrap=True)
    if not done.dropped and not done.made:
        console.print(f"{folder} is sound: nothing was changed.", markup=False, soft_wrap=True)
    again = f"wafl resume {folder}"
    if study.plan.experiment.engine == "flower":
        again = f"flwr run APP -c 'folder=\"{folder}\"'"
    if done.together:
        console.print(f"All runs again: {', '.join(done.together)}. {WHY}", markup=False, soft_wrap=True)
    for what, names in (("test", done.untested), ("train", done.pending)):
        if names:
            console.print(f"Still to {what}: {', '.join(names)}. To do so: {again}", markup=False, soft_wrap=True)
