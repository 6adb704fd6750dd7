"""Build the page of a study from its folder alone, without running its code or reading its data."""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from wafl.base.conditions import attacked_clients, shorten, unproven_line, unseen_clients
from wafl.base.describe import some
from wafl.config.experiment import Experiment
from wafl.models import TITLES
from wafl.report import charts, sections
from wafl.report.page import Block, Cell, Conditions, Figure, Note, Section, Study, Table, Tested
from wafl.studies.attendance import privacies, read_nodes
from wafl.studies.folder import StudyFolder, refuse_links
from wafl.studies.pace import Lines, point_of
from wafl.studies.pages import progress
from wafl.studies.pages.progress import labels_of, progress_of, read_lines, titles_of
from wafl.studies.roster import known_roster

ORDER = (
    "Progress", "Methods", "Under attack", "Radius", "Client by client", "Seen and unseen", "Prediction sets",
    "What the ball moves", "Round by round", "Radius and gamma", "Client weights", "Data", "Participation", "Nodes",
    "Privacy", "Left out", "Setup",
)  # fmt: skip
"""The order of the sections on a page, by title."""
WORST = "worst client"

T = TypeVar("T")


def show_study(
    path: Path, measured: Sequence[Section] = (), names: Sequence[str] | None = None, notes: Sequence[str] = ()
) -> Study:
    """Return a study's page from its folder, with ``measured`` sections, and ``notes`` on why others are missing."""
    refuse_links(path)
    folder, missing = StudyFolder(path), list(notes)

    def take(read: Callable[[], T], default: T) -> T:
        try:
            return read()
        except (OSError, ValueError) as error:
            missing.append(str(error))
            return default

    results = take(folder.read_results, {})
    lines = take(lambda: read_lines(folder.metrics), [])
    experiment = take(folder.experiment, None)
    about = take(folder.read_about, {})
    bulletin = take(lambda: read_nodes(path / "nodes.json"), {})
    titles = titles_of(results, experiment)
    if names is None and (path / "roster.json").exists():
        roster = take(lambda: known_roster(folder), None)
        names = None if roster is None else roster.names

    def name(client: int) -> str:
        return names[client] if names is not None and client < len(names) else f"client {client}"

    tested, spent = scores_of(results), [Note(text) for text in privacies(results)]
    measure, conditions = results.get("measure", "accuracy"), conditions_of(results, experiment)
    methods = [] if experiment is None else progress_of(experiment, results, lines, folder.status(), titles, name)
    seen = f"Flower's nodes, as the server last saw them ({bulletin.get('state')})."
    drafts: list[Section | None] = [
        progress.progress_section(methods),
        sections.methods(tested, measure, conditions) if tested else None,
        sections.attacked(tested, measure, conditions),
        _unseen(results, conditions),
        _rounds(lines, titles, conditions),
        _participation(lines, name, results),
        Section("Nodes", seen, [sections.nodes(bulletin["nodes"])]) if bulletin.get("nodes") else None,
        Section("Privacy", "The privacy that each client has spent.", spent) if spent else None,
        *measured,
    ]
    if "Radius and gamma" not in {section.title for section in measured}:
        drafts.append(_radius_and_gamma(lines, titles))
    if missing:
        drafts.append(Section("Left out", "What this page does not show, and why.", [Note(text) for text in missing]))
    drafts.append(_setup(path, about, folder))
    ordered = sorted((section for section in drafts if section is not None), key=lambda each: ORDER.index(each.title))
    return Study(
        path.name,
        ordered,
        folder.status(),
        _facts(results, about, experiment, methods, conditions),
        [(f"{each.word} {each.test}".strip(), each.number, each.whose) for each in leaders_of(results)],
    )


def conditions_of(results: Mapping[str, Any], experiment: Experiment | None) -> Conditions:
    """Return the facts about a study in captions: its data and model, its attack, and its other tests."""
    data, model = "", ""
    if experiment is not None:
        clients = str(results.get("clients") or "").partition("\n")[0].partition(" with ")[0].partition(",")[0]
        data = ", ".join(filter(None, (experiment.data.source or experiment.data.dataset, clients)))
        model = TITLES.get(experiment.model.kind, experiment.model.kind)
    ball = ""
    if "radius" in results:
        least = "at least this accuracy" if results.get("measure") == "accuracy" else "at most this loss"
        norm, unit = results.get("norm", "l2"), results.get("unit") or "input units"
        ball = f"within W_2 distance {results['radius']:g} ({norm}, {unit})"
        ball = f"{least} for every distribution {ball} of the clients' test data"
    return Conditions(data, model, results.get("attack") or "", results.get("shift") or "", ball)


def together(studies: Mapping[str, Path]) -> list[Section]:
    """Return the sections about several studies: one table and one figure of all their methods."""
    rows, tests = list[Tested](), set[tuple[str, Conditions]]()
    for name, path in studies.items():
        try:
            results, experiment = StudyFolder(path).read_results(), StudyFolder(path).experiment()
        except (OSError, ValueError):
            continue
        rows += scores_of(results, name)
        tests |= {(results["measure"], conditions_of(results, experiment))} if results else set()
    measures = {measure for measure, _ in tests}
    if not rows or len(measures) != 1:
        return []
    by_field = zip(*(astuple(each) for _, each in tests), strict=True)
    conditions = Conditions(*(" or ".join(dict.fromkeys(filter(None, texts))) for texts in by_field))
    (measure,) = measures
    shared = [sections.methods(rows, measure, conditions)]
    same = len({each.attack for _, each in tests}) == 1
    if same and (drawn := sections.attacked(rows, measure, conditions)) is not None:
        shared.append(drawn)
    return [Section(f"All studies: {each.title.lower()}", each.lead, each.blocks) for each in shared]


def scores_of(results: Mapping[str, Any], study: str = "") -> list[Tested]:
    """Return the rows of the table of methods, from the content of ``results.json``."""
    side = "above" if results.get("measure") == "accuracy" else "below"
    return [
        Tested(
            label,
            _method_of(label, row),
            row["clean"]["seeds"] if "clean" in row else (),
            {float(share): values["seeds"] for share, values in row.get("attacked", {}).items()},
            row["worst_client"]["seeds"] if "clean" in row else (),
            row.get("seconds"),
            len(row.get("diverged", ())),
            study,
            (row.get("certified") or row.get("estimate") or {"seeds": ()})["seeds"],
            unproven_line(row["unproven"], side) if "unproven" in row else "",
            row["generalization"]["unseen"]["seeds"] if "generalization" in row else (),
        )
        for label, row in results.get("methods", {}).items()
    ]


def _method_of(label: str, row: Mapping[str, Any]) -> str:
    method = row.get("method")
    name = method.get("name") if isinstance(method, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return name if isinstance(name, str) else label


def _rounds(lines: Lines, titles: Mapping[str, str], conditions: Conditions) -> Section | None:
    """Return the section of round-by-round measurements, as means over the seeds."""
    values: dict[str, dict[str, dict[int, list[float]]]] = {}
    methods: dict[str, str] = {}
    for row in lines:
        label = labels_of(row, titles)
        methods[label] = str(row["method"])
        for key, quantity in sections.QUANTITIES.items():
            value = row.get(key)
            if isinstance(value, int | float):
                points = values.setdefault(quantity, {}).setdefault(label, {})
                points.setdefault(row["round"] + 1, []).append(100.0 * value if "%" in quantity else value)
    curves = {
        quantity: [charts.Curve(label, sorted(at), [fmean(at[x]) for x in sorted(at)]) for label, at in runs.items()]
        for quantity, runs in ((name, values[name]) for name in sections.QUANTITIES.values() if name in values)
        if quantity != "gamma" or any(len({fmean(each) for each in points.values()}) > 1 for points in runs.values())
    }
    seeds = len({row["seed"] for row in lines if isinstance(row.get("seed"), int)})
    means = f"Lines are means over {seeds} seeds." if seeds > 1 else "One seed."
    tested = " Accuracy and test loss are on clean test data." if sections.QUANTITIES["test_loss"] in curves else ""
    return sections.rounds(curves, methods, f"{means}{tested}{conditions.words('data', 'model')}")


def _radius_and_gamma(lines: Lines, titles: Mapping[str, str]) -> Section | None:
    """Return the section of each run's final gamma and achieved radius."""
    last: dict[str, dict[str, tuple[float, float]]] = {}
    settings: set[str] = set()
    for row in lines:
        gamma, radius = row.get("gamma"), row.get("achieved_radius")
        if isinstance(gamma, int | float) and isinstance(radius, int | float) and gamma > 0 and radius > 0:
            title, point = titles.get(row["method"], row["method"]), point_of(row)
            last.setdefault(title, {})[str(point)] = gamma, radius
            settings.add(str((title, {name: value for name, value in point.items() if name != "seed"})))
    ends = {title: sorted(runs.values()) for title, runs in last.items()}
    curves = [charts.Curve(title, [g for g, _ in pairs], [r for _, r in pairs]) for title, pairs in ends.items()]
    several = len(settings) > 1 and len({gamma for pairs in ends.values() for gamma, _ in pairs}) > 1
    what = "at the end of training, one point per run, in the unit of each method's ball"
    return radius_against_gamma(curves, what) if several else None


def radius_against_gamma(curves: Sequence[charts.Curve], what: str) -> Section:
    """Return the section with the paper's figure 2."""
    chart = charts.lines(curves, "gamma", "achieved radius", log=True, marks=True)
    chart["layout"]["yaxis"]["type"] = "log"
    lead = "A larger price of transport, gamma, means a smaller ball."
    return Section("Radius and gamma", lead, [Figure({"radius": chart}, f"The achieved radius {what}.")])


def _unseen(results: Mapping[str, Any], conditions: Conditions) -> Section | None:
    tested = results.get("methods", {}).items()
    rows = {label: row["generalization"] for label, row in tested if "generalization" in row}
    methods = {label: _method_of(label, results["methods"][label]) for label in rows}
    return sections.unseen(rows, methods, results["measure"], conditions) if rows else None


def _participation(lines: Lines, name: Callable[[int], str], results: Mapping[str, Any]) -> Section | None:
    asked, counted, reasons = Counter[int](), Counter[int](), dict[int, Counter[str]]()
    for row in lines:
        asks: Any = row["cohort"] if isinstance(row.get("cohort"), list) else []
        cohort, absent = [each for each in asks if isinstance(each, int) and each >= 0], progress.absent_in(row)
        asked.update(cohort)
        counted.update(client for client in cohort if client not in absent)
        for client, why in absent.items():
            reasons.setdefault(client, Counter())[why] += 1
    section = sections.participation(
        {name(client): asked[client] for client in sorted(asked)},
        {name(client): counted[client] for client in counted},
        {name(client): counts for client, counts in sorted(reasons.items())},
    )
    untested = {label: row["untested"] for label, row in results.get("methods", {}).items() if row.get("untested")}
    if section is None or not untested:
        return section
    more: list[Block] = [Note(f"{label}: not tested: {', '.join(who[:20])}") for label, who in untested.items()]
    return Section(section.title, section.lead, [*section.blocks, *more])


def _setup(path: Path, about: Mapping[str, Any], folder: StudyFolder) -> Section:
    command = about.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []  # pyright: ignore[reportUnknownVariableType]
    if words:
        program = Path(words[0])
        words[:1] = ["python", "-m", program.parent.name] if program.name == "__main__.py" else [program.name]
    machine = about.get("machine")
    versions = {name: str(value) for name, value in about.get("packages", {}).items() if value}
    versions = {"python": str(about.get("python", "?")), **versions} if versions else {}
    if isinstance(machine, dict):
        versions |= {str(name): str(value) for name, value in machine.items() if value}  # pyright: ignore[reportUnknownVariableType]
    if about.get("git_commit"):
        versions["git commit"] = str(about["git_commit"])
    try:
        config = folder.config.read_text(encoding="utf-8") if folder.config.stat().st_size < 2**20 else ""
    except (OSError, ValueError):
        config = ""
    again = f"wafl run {shlex.quote(str(path / 'config.toml'))}" if config else ""
    return sections.setup(shlex.join(words), again, config, versions)


def _facts(
    results: Mapping[str, Any],
    about: Mapping[str, Any],
    experiment: Experiment | None,
    methods: Sequence[progress.MethodProgress],
    conditions: Conditions,
) -> dict[str, str]:
    unproven = any("unproven" in row for row in results.get("methods", {}).values())
    facts = {
        "data": "" if experiment is None else str(experiment.data.source or experiment.data.dataset),
        "clients": str(results.get("clients") or ""),
        "model": conditions.model,
        "attack": conditions.attack,
        "shift of unseen clients": conditions.shift,
        "estimate" if unproven else "certified": conditions.certified,
        "unit": str(results.get("unit") or ""),
        "seeds": str(len(results["seeds"])) if "seeds" in results else "",
        "rounds": progress.rounds_in_words({each.pace.method: (each.pace.round, each.pace.rounds) for each in methods}),
        "started": str(about.get("started", "")).replace("T", " ").removesuffix("+00:00"),
    }
    if experiment is not None and not facts["clients"]:
        facts["clients"] = f"{experiment.data.num_clients or ''} clients".strip()
    return {name: text for name, text in facts.items() if text and text != "0"}


@dataclass(frozen=True)
class Leader:
    """The best of a study in one test.

    ``word`` tells whether it is final (empty with one method), ``test`` describes the test, ``column`` is its short
    name.
    """

    word: str
    column: str
    test: str
    number: str
    whose: str


def leaders_of(results: Mapping[str, Any]) -> list[Leader]:
    """Return the best on clean data, on unseen clients, under the strongest attack, and for the worst client."""
    tested, measure = scores_of(results), results.get("measure", "accuracy")
    most = max((share for row in tested for share in row.attacked), default=None)
    shift, attack = shorten(results.get("shift") or ""), shorten(results.get("attack") or "")
    tests: dict[str, tuple[str, Callable[[Tested], Sequence[float]]]] = {
        "clean": ("on clean data", lambda row: row.clean),
        "unseen": (f"on {unseen_clients(shift)}", lambda row: row.unseen),
    }
    if most is not None:
        tests["attacked"] = f"with {attacked_clients(most, attack)}", lambda row: row.attacked.get(most, ())
    tests[WORST] = "for the worst client on clean data", lambda row: row.worst
    word, percent = "best" if results.get("finished") else "best so far", "%" if measure == "accuracy" else ""
    leaders: list[Leader] = []
    for column, (test, pick) in tests.items():
        means = {row.label: fmean(pick(row)) for row in tested if pick(row)}
        numbers = {label: sections.number(mean, measure) for label, mean in means.items()}
        best = sections.best_number(list(means.values()), measure)
        whose = [label for label, number in numbers.items() if number == best or not best]
        if whose:
            leaders.append(Leader(word if best else "", column, test, numbers[whose[0]] + percent, some(whose, 4)))
    return leaders


def summary_of(path: Path, link: str) -> Study:
    """Return a study as a row of a list; damaged studies are marked."""
    folder, state = StudyFolder(path), "damaged"
    try:
        refuse_links(path)
        results, state = folder.read_results(), folder.status()
        leaders = leaders_of(results)
        best = {f"best, {each.column}": Cell(f"{each.number} {each.whose}", small=each.test) for each in leaders}
        cells = {**_progress(folder, results), **best}
    except (OSError, ValueError) as error:
        cells = {"progress": Cell("cannot be read", small=str(error))}
    return Study(path.name, [], state, link=link, cells=cells)


def list_of(studies: Sequence[Study]) -> Section:
    """Return a table of studies, each with a link to its page."""
    names = dict.fromkeys(column for study in studies for column in study.cells)
    columns = {
        "study": [Cell(study.name, link=study.link) for study in studies],
        "state": [Cell(study.state) for study in studies],
        **{name: [study.cells.get(name, Cell("", "")) for study in studies] for name in names},
    }
    return Section("Studies", "", [Table.of(columns)])


def _progress(folder: StudyFolder, results: Mapping[str, Any]) -> dict[str, Cell]:
    """Return a bar over the rounds of all methods, and the last numbers of the current or last method."""
    experiment, lines = folder.experiment(), read_lines(folder.metrics)
    methods = progress_of(experiment, results, lines, folder.status(), titles_of(results, experiment))
    begun = [each for each in methods if each.stage != "to come"]
    now = next((each for each in begun if each.stage != "done"), (begun or methods)[-1])
    done, rounds = sum(each.stage == "done" for each in methods), sum(each.pace.rounds for each in methods)
    share = sum(each.share * each.pace.rounds for each in methods) / max(1, rounds)
    small = "" if done == len(methods) else f"{now.pace.method}, {now.stage}: round {now.rounds}"
    bar = Cell(f"{done} of {len(methods)} method{'s' * (len(methods) != 1)}", share, small, part=share)
    last = ("time left", "loss", "radius", "accuracy", "test loss")
    return {"progress": bar, **{column: progress.COLUMNS[column](now) for column in last}}
