"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from wafl.compare import Comparison, Row
from wafl.federation import Federation
from wafl.study import SHARES, Outcome


def comparison(outcomes: Sequence[Outcome], attack: str, num_seeds: int) -> Table:
    """One row a method: accuracy on clean data and with ever more attacked clients, the worst client, the time."""
    rows = [outcome.summary() for outcome in outcomes]
    picks: list[tuple[str, Callable[[dict[str, Any]], dict[str, float]]]] = [("clean", lambda row: row["clean"])]
    for share in SHARES:
        picks.append((f"{share:.0%}", lambda row, share=share: row["attacked"][f"{share:g}"]))
    picks.append(("worst", lambda row: row["worst_client"]))
    seeds = f"mean ± standard deviation over {num_seeds} seeds" if num_seeds > 1 else "one seed"
    caption = (
        f"Accuracy in percent, {seeds}: on clean test data, with 20 to 80% of the clients attacked, and of the worst "
        f"client on clean data.\nAttack: {attack}."
    )
    table = Table(
        caption=caption,
        caption_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("method")
    for name, _ in picks:
        table.add_column(name, justify="right")
    table.add_column("seconds", justify="right")
    best = {name: max((pick(row)["mean"] for row in rows), default=0.0) for name, pick in picks}
    for outcome, row in zip(outcomes, rows, strict=True):
        cells = [_cell(pick(row), pick(row)["mean"] >= best[name] - 0.05, num_seeds) for name, pick in picks]
        table.add_row(outcome.name, *cells, f"{outcome.seconds:.1f}")
    return table


def _cell(value: dict[str, float], is_best: bool, num_seeds: int) -> str:
    text = f"{value['mean']:.1f}±{value['std']:.1f}" if num_seeds > 1 else f"{value['mean']:.1f}"
    return f"[bold green]{text}[/]" if is_best else text


def scores(comparison: Comparison, clients: Federation) -> Group:
    """One table an attack, one row a run and share: accuracies in percent (losses for a regression)."""
    attacks = list(dict.fromkeys(row.score.attack for row in comparison.rows))
    tables = [
        _scores_under(attack, [row for row in comparison.rows if row.score.attack == attack]) for attack in attacks
    ]
    what = "Losses" if clients.num_classes is None else "Accuracies in percent"
    return Group(
        *tables,
        f"{what}: over all test examples (interval by bootstrap over clients), the clients' mean and standard "
        "deviation, the worst client, the worst 10 and 20% of the clients.",
    )


def _scores_under(attack: str, rows: Sequence[Row]) -> Table:
    title = "clean data" if attack == "none" else attack
    table = Table(
        title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column("run")
    for name in ("attacked", "pooled", "95% interval", "clients", "worst", "10%", "20%", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        score = row.score
        scale = 1.0 if score.accuracy is None else 100.0
        middle = score.client_loss if score.client_accuracy is None else score.client_accuracy
        pooled = score.loss if score.accuracy is None else score.accuracy
        low, high = score.interval()
        table.add_row(
            row.run,
            f"{row.attacked:.0%}",
            f"{scale * pooled:.1f}",
            f"{scale * low:.1f}-{scale * high:.1f}",
            f"{scale * middle:.1f}±{scale * score.std:.1f}",
            *(f"{scale * score.worst(share):.1f}" for share in (1e-9, 0.1, 0.2)),
            f"{score.loss:.2f}",
        )
    return table
