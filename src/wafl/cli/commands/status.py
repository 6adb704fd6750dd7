"""What ``wafl flower status`` shows: the nodes of a study, and who was left out."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Group
from rich.filesize import decimal
from rich.text import Text

from wafl.base.describe import some, visible
from wafl.evaluation.tables import plain_table


def status_table(status: Mapping[str, Any], now: datetime | None = None) -> Group:
    """What is shown of a study: how far it is, a table with one row per node, and a line per client left out."""
    now = now or datetime.now(UTC)
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
        f"{node['name'] or node['id']} has failed, at last: {node['last_failure']}"
        for node in status["nodes"]
        if node["last_failure"]
    ]
    left_out = [
        f"{name} was left out of {about['rounds']} rounds, at last of round {about['last']}: {about['why']}"
        for name, about in status["left_out"].items()
    ]
    return Group(title, table, *(Text(visible(line)) for line in (*failures, *left_out)))


def _ago(when: str | None, now: datetime) -> str:
    """How long ago a time was, in words.

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
