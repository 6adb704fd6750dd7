"""What the theory says about a run, as tables for the terminal."""

from collections.abc import Sequence

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from wafl.base.norms import norm_name
from wafl.cli.tables import plain_table
from wafl.results.run import Run
from wafl.theory import Bound, Certificates, Summary
from wafl.theory.summary import Promised


def promises(name: str, certificates: Certificates, radius: float, rows: Sequence[Promised]) -> Table:
    """A table with one row per promise: to whom, with which probability, and how loose it is."""
    table = plain_table(
        *("", ">at most", ">probability", "how loose, or why there is no promise"),
        title=f"{name}: what is promised at radius {radius:g}, {norm_name(certificates.norm)} ball",
        caption=f"at most: the {certificates.quantity.noun}; probability: over the draw of examples and clients.",
    )
    for each in rows:
        why = escape(each.why) if each.value is not None else f"[yellow]{escape(each.why)}[/]"
        value = "-" if each.value is None else f"{each.value:.4f}"
        table.add_row(each.whom, value, f"{each.probability:g}", why)
    return table


def theory_of(name: str, run: Run, summary: Summary) -> Group:
    """Tables of a run's constants, of what follows from them, and of every bound with its terms."""
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


def certificates(name: str, certificates: Certificates) -> Table:
    """Return a table with one row per radius: the bound or the estimate, the reached loss, and the gap between them."""
    label = "certified: proven" if certificates.column == "certified" else "estimate: not proven"
    simple = certificates.quantity.simple
    if certificates.quantity.has_slopes:
        simple += ", proven" if certificates.simple_proven else ", an estimate"
    table = plain_table(
        *("", ">reached", f">{certificates.column}", ">at gamma", ">simple", ">gap"),
        title=f"{name}: largest {certificates.quantity.noun} within the radius, "
        f"{norm_name(certificates.norm)} ball ({certificates.unit}, unbounded)",
        caption=f"{label}; simple is {simple}; reached: a distribution inside the ball.",
    )
    for row in certificates.rows:
        best = certificates.best_proven(row)
        reached, gap = ("", "") if row.achieved is None else (f"{row.achieved:.4f}", f"{best - row.achieved:.4f}")
        table.add_row(f"{row.radius:g}", reached, f"{best:.4f}", f"{row.gamma:.4g}", f"{row.simple:.4f}", gap)
    return table
