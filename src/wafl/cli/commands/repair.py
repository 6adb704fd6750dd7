"""``wafl repair``: make a damaged study whole again."""

from wafl.cli.shared import OneStudy, Trust, check_study, reading

WHY = (
    "The runs of a method are computed together, and how many they are decides how sums are rounded: trained alone, "
    "the damaged one could differ in its last bits"
)


def repair(folder: OneStudy, trust: Trust = False) -> None:
    """Keep what is sound of a damaged study, and say what is dropped."""
    from wafl.cli.terminal import tell

    with reading(trust):
        check_study(folder)
        from wafl.studies.folder import StudyFolder
        from wafl.studies.repair import repair as repair_study
        from wafl.studies.roster import clients_by_name
        from wafl.studies.study import Study

        study = Study.resume(folder, clients_by_name(StudyFolder.existing(folder)))
        done = repair_study(study)
    for title, texts in (("Dropped", done.dropped), ("Made again", done.made)):
        for text in texts:
            tell(f"{title}: {text}")
    if not done.dropped and not done.made:
        tell(f"{folder} is sound: nothing was changed.")
    again = f"wafl resume {folder}"
    if study.plan.experiment.engine == "flower":
        again = f"flwr run APP -c 'folder=\"{folder}\"'"
    if done.together:
        tell(f"All runs again: {', '.join(done.together)}. {WHY}")
    for what, names in (("test", done.untested), ("train", done.pending)):
        if names:
            tell(f"Still to {what}: {', '.join(names)}. To do so: {again}")
