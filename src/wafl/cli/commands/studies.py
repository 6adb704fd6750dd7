"""Implement commands on folders of studies: ``wafl runs``, ``repair``, ``report`` and ``serve``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from typer import Argument, Option

from wafl.base.files import is_temporary
from wafl.cli.saved import check_study, load_runs, seen_and_unseen
from wafl.cli.terminal import OneStudy, Trust, make_console, one_line_errors, reading, say, tell
from wafl.report import page


def runs(output: Annotated[Path, Argument(metavar="FOLDER")] = Path("runs")) -> None:
    """List studies with their progress and best results."""
    from wafl.cli.tables import studies
    from wafl.studies.folder import StudyFolder

    with one_line_errors():
        if not output.is_dir():
            raise FileNotFoundError(f"{output} is not a folder: wafl run creates one")
        folders = sorted(path.parent for path in output.glob("*/config.toml") if not is_temporary(path.parent))
        listed = [StudyFolder(folder) for folder in folders]
        none = f"{output} has no studies yet: wafl run creates one."
        make_console().print(studies(listed) if listed else escape(none))


WHY = (
    "The runs of a method are computed together, and how many they are decides how sums are rounded: trained alone, "
    "the damaged one could differ in its last bits"
)


def repair(folder: OneStudy, trust: Trust = False) -> None:
    """Repair a damaged study: keep its sound files, and list the dropped ones."""
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


def report(
    studies: Annotated[list[Path], Argument(metavar="STUDY...")],
    output: Annotated[Path | None, Option("--output", "-o")] = None,
    quick: Annotated[bool, Option("--quick")] = False,
    data_dir: Path | None = None,
    trust: Trust = False,
) -> None:
    """Write one page with the results of studies, which opens in any browser without a network."""
    with reading(trust):
        page.check_page_packages()
        for path in studies:
            if not all((path / file).is_file() for file in ("config.toml", "about.json")):
                raise ValueError(f"{path} is not a study: pass the folder of one, such as runs/digits")
        from wafl.studies.pages.shown import together

        shown = [_study(path, quick, data_dir) for path in studies]
        common = together({path.name: path for path in studies}) if len(studies) > 1 else []
        target = output or (Path("report.html") if len(studies) > 1 else studies[0] / "report.html")
        page.write_page(page.Page("WAFL report", shown, common), target)
    tell(f"Report: {target}")


def _study(path: Path, quick: bool, data_dir: Path | None) -> page.Study:
    """Return a study for the page: complete, or only from its folder if its models or data are unavailable."""
    from wafl.config.plan import make_attack
    from wafl.studies.folder import StudyFolder
    from wafl.studies.pages.measured import measure
    from wafl.studies.pages.progress import titles_of
    from wafl.studies.pages.shown import show_study

    if quick:
        return show_study(path)
    try:
        folder = StudyFolder.existing(path)
        experiment = folder.experiment()
        titles = titles_of(folder.read_results(), experiment)
        loaded = load_runs(path)
        order = {label: index for index, label in enumerate(titles)}
        runs = {titles.get(name, name): loaded[name] for name in sorted(loaded, key=lambda name: order.get(name, 999))}
        clients, unseen = seen_and_unseen(loaded, path, data_dir)
        lost: list[str] = []
        attack = make_attack(experiment.attack)
        measured = measure(runs, clients, unseen, attack, lambda what: say(f"{path}: {what}"), lost.append)
    except (ValueError, OSError, RuntimeError) as error:
        why = f"The page has no results of the models on their data: {error}"
        say(f"Note: {why}", typer.colors.YELLOW)
        return show_study(path, notes=[why])
    return show_study(path, measured, clients.names, lost)


def serve(
    folder: Annotated[Path, Argument(metavar="FOLDER")] = Path("runs"),
    host: str = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535)] = 8340,
) -> None:
    """Show studies in a browser while they run; only on this machine, unless you pass --host."""
    from wafl.studies.pages.live import make_server

    with one_line_errors():
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder: pass a folder of studies, such as runs")
        server = make_server(folder, host, port)
    say(f"{folder} is shown at {server.url} until you press Ctrl-C.")
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit(0) from None
