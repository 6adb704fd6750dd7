"""Write a page from Python about runs, their clients, and all possible measurements."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from wafl.attacks import Attack
from wafl.data.federation import Federation
from wafl.evaluation.compare import compare
from wafl.report import sections
from wafl.report.page import Page, Section, Study, check_page_packages, write_page
from wafl.results.run import Run, Runs
from wafl.sets.prediction_sets import PredictionSets
from wafl.studies.pages.measured import measure
from wafl.studies.pages.progress import rounds_in_words
from wafl.studies.pages.shown import ORDER


def write_report(
    runs: Mapping[str, Run] | Sequence[Run],
    clients: Federation,
    path: str | os.PathLike[str] = "report.html",
    *,
    attack: Attack | None = None,
    attacked: Sequence[float] = (0.2, 0.4, 0.6, 0.8),
    unseen: Federation | None = None,
    sets: Mapping[str, PredictionSets] | None = None,
    title: str = "WAFL report",
) -> Path:
    """Write one page about trained models, which opens in any browser without a network, and return the file.

    The page shows the table of methods, accuracy by attacked share, a slider through the radius with certificates, each
    client's result, the examples that the ball moves, the rounds of training, client weights and distances, and the
    data. It needs ``wafl-learn[report]``.

    Args:
        runs: trained models by name. Runs in a sequence are named by their methods and by the varied values of a sweep.
        clients: the clients on which the models were trained.
        path: the file to write.
        attack: an attack or a shift for the tests.
        attacked: shares of the clients to attack.
        unseen: clients that took no part in training.
        sets: prediction sets by name; their coverage is measured on `unseen`, or without them on `clients`.
        title: the title of the page.
    """
    check_page_packages()
    named = runs if isinstance(runs, Mapping) else _by_name(runs)
    if not named:
        raise ValueError("there are no runs to report")
    attacks: list[Attack | None] = [None] if attack is None else [None, attack]
    tested = compare(named, clients, attacks=attacks, attacked=attacked, unseen=unseen).sections()
    measured = measure(named, clients, unseen, attack)
    measured += [] if not sets else [_sets(sets, clients, unseen)]
    by_title = {section.title: section for section in (*tested, *Runs(named.values()).sections(), *measured)}
    ordered = sorted(by_title.values(), key=lambda section: ORDER.index(section.title))
    rounds = {run.name: (len(run.history), len(run.history)) for run in named.values()}
    facts = {"clients": str(clients), "unit": clients.unit, "rounds": rounds_in_words(rounds)}
    facts |= {} if attack is None else {"attack": attack.within(clients.bounds).describe(clients.unit)}
    facts |= {"shift of unseen clients": unseen.shift} if unseen is not None and unseen.shift else {}
    return write_page(Page(title, [Study(title, ordered, facts=facts)]), Path(path))


def _sets(sets: Mapping[str, PredictionSets], clients: Federation, unseen: Federation | None) -> Section:
    others, tested = (clients, "clients that trained") if unseen is None else (unseen, "unseen clients")
    return sections.prediction_sets([each.row(label, others) for label, each in sets.items()], tested)


def _by_name(runs: Sequence[Run]) -> dict[str, Run]:
    """Return the first seed of each method and swept combination."""
    firsts: dict[str, Run] = {}
    for run in runs:
        firsts.setdefault(run.name, run)
    return firsts
