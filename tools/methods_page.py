"""``python tools/methods_page.py`` writes ``docs/methods.md`` from the lists of methods and parts.

A test holds it up to date.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from wafl import weights
from wafl.base.options import options_of
from wafl.local import LOCAL_STEPS
from wafl.methods.catalog import Entry, catalog, default_of, range_of, summary_of
from wafl.servers import AGGREGATES, OPTIMIZERS

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
HEAD = """\
# Methods

Every named method, what it minimizes and when to use it. A method is a preset of four parts: an objective, client
weights, a local step and a server. Any part works with the parts of any other method
([extending.md](extending.md)); those that an experiment file can name are listed at the end, and more rules for the
weights are in [weights.md](weights.md). `wafl methods` prints this list, and `wafl methods NAME` all about one of them.
Below, `f_i` is the loss of client i, and `lambda_i` or `p_i` its weight.

A client's size is the number of its examples, which it sends once. The loss that comes with a model is that of its
first batch, and a loss that is asked for by itself that of all its examples. [flower.md](flower.md) lists every value.

`tools/methods_page.py` writes this page from the lists of methods and parts.
"""
PARTS = {"Client weights": weights.RULES, "Optimizers": OPTIMIZERS, "Servers": AGGREGATES, "Local steps": LOCAL_STEPS}


def page() -> str:
    """The text of ``docs/methods.md``."""
    entries = catalog()
    rows = "\n".join(f"| [{each.name}](#{each.name.lower()}) | {each.moves} | {each.sends} |" for each in entries)
    table = f"| method | moves | clients send |\n| --- | --- | --- |\n{rows}\n"
    parts = (_parts(title, kinds) for title, kinds in PARTS.items())
    return "\n".join([HEAD, table, *(_section(each) for each in entries), *parts])


def _section(each: Entry) -> str:
    equation = f"```math\n{each.about.equation}\n```"
    parts = [f"## {each.name}", f"{each.summary} {each.about.paper}.", equation, f"**When.** {each.about.use}"]
    if each.options:
        rows = "\n".join(
            f"| `{option.name}` | {default_of(option)} | {range_of(option)} | {option.doc} |" for option in each.options
        )
        parts.append(f"| option | default | range | |\n| --- | --- | --- | --- |\n{rows}")
    return "\n\n".join(parts) + "\n"


def _parts(title: str, kinds: Mapping[str, type]) -> str:
    lines = [f"## {title}", ""]
    for name, kind in kinds.items():
        own = options_of(kind)
        options = f" Options: {', '.join(f'`{option}`' for option in own)}." if own else ""
        lines.append(f"- `{name}`: {summary_of(kind)}{options}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
