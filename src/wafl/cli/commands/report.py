"""``wafl report``: studies as one page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from wafl.cli.shared import Trust, load_runs, reading, seen_and_unseen
from wafl.cli.terminal import say, tell

if TYPE_CHECKING:
    from wafl.report.blocks import Study


def report(
    studies: Annotated[list[Path], Argument(metavar="STUDY...")],
    output: Annotated[Path | None, Option("--output", "-o")] = None,
    quick: Annotated[bool, Option("--quick")] = False,
    data_dir: Path | None = None,
    trust: Trust = False,
) -> None:
    """Write one page that shows what studies found; it opens in any browser, from disk, without a network."""
    with reading(trust):
        from wafl.report.page import check_page_packages, write_page

        check_page_packages()
        for path in studies:
            if not all((path / file).is_file() for file in ("config.toml", "about.json")):
                raise ValueError(f"{path} is not a study: give a folder that wafl run made, such as runs/digits")
        from wafl.report.blocks import Page
        from wafl.studies.pages.shown import together

        shown = [_study(path, quick, data_dir) for path in studies]
        common = together({path.name: path for path in studies}) if len(studies) > 1 else []
        target = output or (Path("report.html") if len(studies) > 1 else studies[0] / "report.html")
        write_page(Page("WAFL report", shown, common), target)
    tell(f"Report: {target}")


def _study(path: Path, quick: bool, data_dir: Path | None) -> "Study":
    """What the page shows of one study: everything, or what its folder tells if its models or data cannot be had."""
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
        why = f"What the models do on their data is left out: {error}"
        say(f"Note: {why}", typer.colors.YELLOW)
        return show_study(path, notes=[why])
    return show_study(path, measured, clients.names, lost)
