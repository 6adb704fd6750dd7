"""Format tables for the terminal."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from wafl.base.conditions import attacked_clients, unproven_line
from wafl.base.describe import rounded_up, some, visible
from wafl.base.norms import norm_name
from wafl.data.federation import Federation
from wafl.evaluation.tables import Name, dense_table, plain_table
from wafl.promises.audit import Audit
from wafl.promises.verdict import Checked
from wafl.results.run import Run
from wafl.studies.attendance import absences, privacies
from wafl.studies.folder import Status, StudyFolder
from wafl.studies.pages.progress import progress_of, read_lines, titles_of
from wafl.studies.pages.shown import WORST, leaders_of
from wafl.studies.study import diverged
from wafl.theory import Bound, Certificates, Summary
from wafl.theory.summary import Promised
from wafl.tuning.judging import Tuning, describe_setting
from wafl.weights import TransportWeights

MOST_CLIENTS = 20
"""The maximum number of clients of a certificate to list, besides clients with wrong numbers."""


def comparison(results: Mapping[str, Any]) -> Group:
    """Return a table with one row per method: clean, attacked, certified, unseen and worst clients, and seconds."""
    rows = results["methods"]
    tested = {label: row for label, row in rows.items() if "clean" in row}
    reasons = diverged(results)
    accuracy = results["measure"] == "accuracy"
    shares = list(dict.fromkeys(share for row in tested.values() for share in row["attacked"]))
    picks: list[tuple[str, Callable[[Any], Any]]] = [("clean", lambda row: row["clean"])]
    names = {share: attacked_clients(float(share)).replace(" ", "\n") for share in shares}
    picks += [(names[share], lambda row, share=share: row["attacked"][share]) for share in shares]
    unproven = next((row["unproven"] for row in tested.values() if "unproven" in row), None)
    if "radius" in results:
        bound = "certified" if unproven is None else "estimate"
        picks.append((bound, lambda row: row.get("certified") or row["estimate"]))
    if any("generalization" in row for row in tested.values()):
        column = "unseen,\nshifted" if "shift" in results else "unseen\nclients"
        picks.append((column, lambda row: row["generalization"]["unseen"]))
    picks.append(("worst", lambda row: row["worst_client"]))
    numbers = [*(name for name, _ in picks), "seconds", *(["diverged"] if reasons else [])]
    table = dense_table("method", numbers, caption=_caption(results, shares, bool(reasons), unproven is None))
    choose = max if accuracy else min
    best = {name: choose((pick(row)["mean"] for row in tested.values()), default=0.0) for name, pick in picks}
    for label, row in rows.items():
        cells = ["-"] * (len(picks) + 1)
        if label in tested:
            cells = [_cell(pick(row), best[name], accuracy) for name, pick in picks]
            cells.append(f"{row['seconds']:.1f}")
        lost = len(row.get("diverged", ()))
        count = [f"[red]{lost} of {len(results['seeds'])}[/]" if lost else ""] if reasons else []
        table.add_row(Name(label), *cells, *count)
    lost = [f"[red]Diverged:[/] {escape(reason)}" for reason in reasons]
    lost += [f"[green]Privacy:[/] {escape(text)}" for text in privacies(results)]
    above = [] if unproven is None else [Text(unproven_line(unproven, "above" if accuracy else "below"), "yellow")]
    return Group(*above, table, *lost, *(f"[yellow]Left out:[/] {escape(text)}" for text in absences(results)))


def _caption(results: Mapping[str, Any], shares: Sequence[str], some_diverged: bool, proven: bool) -> str:
    """Return the lines below the table: the meaning of each column, with the attack, the shift, and the ball."""
    seeds = len(results["seeds"])
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    if some_diverged:
        spread += " (diverged runs left out)"
    accuracy = results["measure"] == "accuracy"
    lines = [f"{'Accuracy in percent' if accuracy else 'Loss'} on test examples, {spread}."]
    if shares:
        lines.append(f"Attack: {results['attack']}.")
    if "radius" in results:
        norm, what = results.get("norm", "l2"), "lowest accuracy" if accuracy else "largest loss"
        lines.append(
            f"{'Certified' if proven else 'Estimate'}: the {what} on any data within {results['radius']:g} of the "
            f"clients' test examples ({norm}, W_2, {results['unit']})."
        )
    if any("generalization" in row for row in results["methods"].values()):
        shifted = f" Their data are shifted: {results['shift']}." if "shift" in results else ""
        lines.append(f"Unseen: clients that took no part in training.{shifted}")
    return "\n".join([*lines, "Worst: the worst client that took part in training, on clean data."])


def tuned_settings(tuning: Tuning) -> Table:
    """Return a table with one row per method: the chosen setting, and the reason."""
    table = plain_table("method", "chosen", "why")
    for column in table.columns[:2]:
        column.no_wrap = True
    for name in tuning.trials:
        best = tuning.best.get(name)
        if best is None:
            table.add_row(escape(name), "-", "[red]every trial diverged[/]")
        else:
            table.add_row(escape(name), escape("\n".join(describe_setting(best.setting).split(", "))), escape(best.why))
    return table


def _cell(value: dict[str, Any], best: float, accuracy: bool) -> str:
    """Format a mean and its deviation: percentages with one decimal place, losses with three digits."""
    digits = ".1f" if accuracy else ".3g"
    spread = f"±{value['std']:{'.1f' if accuracy else '.2g'}}" if len(value["seeds"]) > 1 else ""
    text = f"{value['mean']:{digits}}{spread}"
    level = abs(value["mean"] - best) <= (0.05 if accuracy else 5e-4 * abs(best))
    return f"[bold green]{text}[/]" if level else text


def verification(file: Path, result: Checked) -> Table:
    """Return a table with one row per line of a certificate: recomputed, noted, attested or wrong."""
    signed = "signed by the owner of the key" if result.signed else "no signature was checked"
    caption = (
        f"Recomputed: {result.share:.1%} of the clients' weight. Attested: claimed by the file's issuer. Noted: an "
        "assumption that no computation checks, or something to know."
    )
    table = plain_table("", "found", "", title=escape(visible(f"{file}: {signed}")), caption=caption)
    colors = {"recomputed": "green", "noted": "dim", "attested": "yellow", "wrong": "red"}
    clients = list(result.clients.values())
    wrong = [line for line in clients[MOST_CLIENTS:] if line.status == "wrong"]
    for line in (*result.lines, *clients[:MOST_CLIENTS], *wrong):
        table.add_row(escape(visible(line.name)), f"[{colors[line.status]}]{line.status}[/]", escape(visible(line.why)))
    return table


def audited(file: Path, audit: Audit) -> Table:
    """Return a table with one row per label of a site: its distance, a resample's distance, bound and measurement."""
    table = plain_table(
        *("", ">share", ">examples", ">distance", ">resample", ">", ">power", ">certified", ">measured"),
        title=f"{escape(visible(str(file)))}: {audit.norm} distance from the federation, {audit.unit}",
        caption="resample: the distance of the same number of new examples of the federation; a site like it has a "
        "label outside with probability 0.05 at most (Bonferroni); power: the probability of noticing a shift of "
        f"{audit.shift:g}; certified: a bound on the expected loss, if the certificate's numbers of its clients are "
        "true; measured: the mean loss of these examples.",
    )
    words = {True: "[green]inside[/]", False: "[yellow]outside[/]", None: "too few"}
    for each in audit.labels:
        near = "" if each.resample is None else f"{each.resample:.4g}"
        counts = (f"label {each.label}", f"{each.share:.3f}", f"{each.examples:,}", f"{each.distance:.4g}", near)
        power = "" if each.power is None else f"{each.power:.2f}"
        table.add_row(*counts, words[each.inside], power, rounded_up(each.certified), f"{each.measured:.4f}")
    examples = sum(each.examples for each in audit.labels)
    table.add_row("all", "1", f"{examples:,}", "", "", "", "", rounded_up(audit.certified), f"{audit.measured:.4f}")
    return table


def studies(folders: Sequence[StudyFolder]) -> Table:
    """Return a table with one row per study: status, finished methods, and the best result on its hardest test."""
    table = plain_table("study", "status", "started", "methods", "best")
    colors = {"finished": "green", "running": "cyan", "interrupted": "yellow"}
    for folder in folders:
        name = escape(folder.path.name)
        try:
            status = folder.status()
            started = str(folder.read_about().get("started", ""))[:16].replace("T", " ")
            results = folder.read_results()
            methods, best = _headline(results)
            methods = methods if status == "finished" else _reached(folder, results, status)
        except Exception as error:  # whatever one folder contains, the others are listed
            table.add_row(name, "[red]damaged[/]", "", "", f"[red]{escape(str(error))}[/]")
        else:
            table.add_row(name, f"[{colors[status]}]{status}[/]", escape(started), methods, escape(best))
    return table


def _reached(folder: StudyFolder, results: Mapping[str, Any], status: Status) -> str:
    """Describe the finished methods of a study, and the rounds of the last trained method."""
    experiment = folder.experiment()
    stages = progress_of(experiment, results, read_lines(folder.metrics), status, titles_of(results, experiment))
    done = sum(each.stage == "done" for each in stages)
    under_way = [f"{each.method}: {each.rounds} rounds" for each in stages if each.stage not in ("done", "to come")]
    return "; ".join([f"{done} of {len(stages)}", *under_way])


def _headline(results: Mapping[str, Any]) -> tuple[str, str]:
    """Return the number of finished methods, the best of them, and the number of runs that diverged."""
    lost = len(diverged(results))
    count = f"{lost} run{'s' if lost > 1 else ''} diverged" if lost else ""
    unit = "" if results.get("measure") == "accuracy" else " loss"
    leaders = [each for each in leaders_of(results) if each.column != WORST]
    best = f"{leaders[-1].whose}: {leaders[-1].number}{unit} ({leaders[-1].test})" if leaders else ""
    return str(len(results.get("methods", {}))), "; ".join(filter(None, (best, count)))


def transport_weights(clients: Federation, rules: Sequence[TransportWeights], target: str | None, sample: int) -> Group:
    """Return a table with one row per source: its distance, and its weight by each rule.

    Below the table is the distance that each rule reaches.
    """
    aim = f"to {target}" if target else "of the mixture to it"
    table = plain_table(
        *("", ">examples", ">W_2", *(f">{result.rule}" for result in rules)),
        title=f"Client weights: W_2 in {clients.unit}",
        caption=f"W_2 {aim} on {sample} points each, ± its standard error over draws; fewer points make it larger.",
    )
    sizes = clients.train.num_examples.tolist()
    for index, (name, count) in enumerate(zip(clients.names, sizes, strict=True)):
        square, error = rules[0].distances[index], rules[0].standard_errors[index]
        length = max(square, 0.0) ** 0.5
        spread = f" ± {error / (2.0 * length):.2f}" if length > 0 and error == error else ""
        shares = [f"{result.weights[index]:.3f}" for result in rules]
        table.add_row(escape(name), f"{count:,}", f"{length:.2f}{spread}", *shares)
    lines = [
        f"{result.rule}: W_2 = {result.radius:.3f}, W_2^2 = {result.value:.2f} "
        f"({result.kind}, at most {result.gap:.2g} above the least)"
        for result in rules
    ]
    return Group(table, *lines)


def nodes(status: Mapping[str, Any]) -> Group:
    """Return a study's nodes: its progress, a table with one row per node, and a line per client left out."""
    now = datetime.now(UTC)
    where = "" if status["round"] is None else f", {status['run']}, round {status['round']}"
    title = Text(visible(f"{status['state']}{where}; written {_ago(status['updated'], now)}"))
    table = plain_table("node", "clients", ">here", ">seen", ">replied", ">failed", ">sent", ">received")
    table.columns[0].min_width, table.columns[1].min_width = 8, 10
    for node in status["nodes"]:
        table.add_row(
            Text(visible(node["name"] or node["id"])),
            Text(visible(some(node["clients"], 3))),
            "yes" if node["present"] else Text("no", style="yellow"),
            *(_ago(node[when], now).removesuffix(" ago") for when in ("last_seen", "last_reply")),
            f"{node['failures']} of {node['replies'] + node['failures']}",
            *(decimal(int(node[size])) for size in ("bytes_sent", "bytes_received")),
        )
    failures = [
        f"{node['name'] or node['id']} has failed, most recently: {node['last_failure']}"
        for node in status["nodes"]
        if node["last_failure"]
    ]
    left_out = [
        f"{name} was left out of {about['rounds']} rounds, at last of round {about['last']}: {about['why']}"
        for name, about in status["left_out"].items()
    ]
    return Group(title, table, *(Text(visible(text)) for text in (*failures, *left_out)))


def _ago(when: str | None, now: datetime) -> str:
    """Describe how long ago a time was.

    >>> _ago("2026-01-01T00:00:00+00:00", datetime(2026, 1, 1, 2, 3, tzinfo=UTC))
    '2 h ago'
    """
    if when is None:
        return "never"
    try:
        seconds = max(0.0, (now - datetime.fromisoformat(when)).total_seconds())
    except (TypeError, ValueError):
        return "?"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def promises(name: str, certificates: Certificates, radius: float, rows: Sequence[Promised]) -> Table:
    """Return a table with one row per promise: for whom, with which probability, and how loose it is."""
    table = plain_table(
        *("", ">at most", ">probability", "how loose, or why there is no promise"),
        title=f"{name}: what is promised at radius {radius:g}, {norm_name(certificates.norm)} ball",
        caption=f"at most: the {certificates.quantity.noun}; probability: over the draw of examples and clients.",
    )
    for each in rows:
        why = escape(each.why) if each.value is not None else f"[yellow]{escape(each.why)}[/]"
        value = "-" if each.value is None else rounded_up(each.value)
        table.add_row(each.whom, value, f"{each.probability:g}", why)
    return table


def theory_of(name: str, run: Run, summary: Summary) -> Group:
    """Return tables of a run's constants, their consequences, and every bound with its terms."""
    return Group(_constants(name, summary), _consequences(run, summary), _bounds(summary))


def _constants(name: str, summary: Summary) -> Table:
    here, ball = summary.here, summary.ball
    low, high = here.data_bounds
    caption = f"Inputs in [{low:g}, {high:g}], which moved examples may leave by {here.reach:.3g}; " + (
        "no bounded set of parameters: this model is not linear"
        if ball is None
        else f"parameters with norm at most {ball.params_radius:.4g}"
    )
    title = f"{name}: Lipschitz constants, {norm_name(here.norm)} ball"
    table = plain_table("", ">here", ">in the ball", "", title=title, caption=caption)
    for label in ("L_z", "L_zz", "L_theta", "L_theta_theta", "L_theta_z", "max_loss"):
        value = getattr(here, label)
        widest = "" if ball is None else f"{getattr(ball, label):.4g}"
        table.add_row(label, f"{value:.4g}", widest, f"{value.kind}: {value.why}")
    return table


def _consequences(run: Run, summary: Summary) -> str:
    here, rate = summary.here, run.settings["schedule"]["learning_rate"]
    used = f"gamma {summary.gamma:.4g}, learning rate {escape(str(rate))}"
    if here.norm != 2 or not summary.gamma > here.concavity_limit:
        return f"Concavity limit L_zz / 2 = {here.L_zz / 2.0:.4g}; {used}: the inner problem need not be concave.\n"
    smoothness, cap = here.smoothness(summary.gamma), here.learning_rate_cap(summary.gamma)
    return (
        f"Concavity limit L_zz / 2 = {here.concavity_limit:.4g}; {used}. phi_gamma is {smoothness:.4g}-smooth in the "
        f"parameters: the convergence theorem speaks of learning rates up to {cap:.3g}.\n"
    )


def _bounds(summary: Summary) -> Table:
    table = plain_table(
        *("", ">value", ">paper", "terms, or the precondition that fails"),
        title=f"Bounds at gamma {summary.gamma:.4g}, radius {summary.radius:.4g}",
        caption="paper: the paper's own statement, if it differs (wafl.theory says why).",
    )
    for bound in summary.bounds:
        if isinstance(bound, Bound):
            paper = "" if bound.paper is None else f"{bound.paper:.4g}"
            shown = sorted(bound.terms.items(), key=lambda term: -term[1])[:5]
            terms = ", ".join(f"{label} {value:.3g}" for label, value in shown)
            table.add_row(bound.name, f"{bound.value:.4g}", paper, terms)
        else:
            table.add_row(bound.name, "-", "", f"[yellow]{escape(bound.reason)}[/]")
    return table
