"""``wafl tune``: choose the options of every method on held-out training data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from typer import Argument

from wafl.cli.progress import SOME_DIVERGED, watched
from wafl.cli.shared import Changes, one_line_errors
from wafl.cli.terminal import make_console, tell
from wafl.config.toml_file import read_toml

if TYPE_CHECKING:
    from wafl.studies.tune import TunedExperiment
    from wafl.tuning.result import Tuning


def tune(
    experiment: Annotated[Path, Argument()],
    changes: Changes = None,
    output: Path | None = None,
) -> None:
    """Try the same number of settings of every method, and write the experiment with the best."""
    with one_line_errors():
        read_toml(experiment)
        from wafl.studies.tune import TunedExperiment

        tuned = TunedExperiment.create(experiment, changes or [], output)
        tuning = _search(tuned)
    _show(tuned, tuning)
    if len(tuning.best) < len(tuning.trials):
        raise typer.Exit(SOME_DIVERGED)


def _search(tuned: TunedExperiment) -> Tuning:
    """What tuning found, with one bar per method while it tries; exits if it is interrupted."""
    from wafl.cli.bars import TrialBars

    search = tuned.search
    tell(f"{tuned.plan.who}\n{search.trials} trials per method, judged by {search.words()}\n")
    if tuned.known:
        tell(f"Done before: {', '.join(tuned.known)}.")

    def kept() -> str:
        done = f"What was done is in {tuned.trials_file}, and the same command goes on with the others."
        return done if tuned.trials_file.exists() else "No method was done yet."

    bars = TrialBars(search, tuned.known, make_console())
    with watched(bars.display, Warning, kept):
        return tuned.run([bars])


def _show(tuned: TunedExperiment, tuning: Tuning) -> None:
    """Print what was chosen and why, and what to run next."""
    from wafl.cli.tables import tuned_settings

    console = make_console()
    console.print(tuned_settings(tuning))
    edges = [f"[yellow]{name}:[/] {edge}." for name, best in tuning.best.items() for edge in best.edges]
    if edges:
        output = escape(shlex.quote(str(tuned.output)))
        hint = f"Look further: wafl tune {output} searches around what was chosen; or widen \\[tune.space]."
        console.print("\n".join([*edges, hint]), highlight=False)
    for name, trials in tuning.trials.items():
        if name not in tuning.best:
            reason = escape(str(trials[0].diverged))
            console.print(f"[red]{name}:[/] every trial diverged, and its setting was left as it was: {reason}")
    command = f"wafl run {shlex.quote(str(tuned.output))}"
    tell(f"\nAll trials: {tuned.trials_file}\nTo train and test what was chosen, once: {command}")
