"""``wafl methods``: the named methods, and all about one of them."""

from typing import Annotated

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from typer import Argument

from wafl.cli.shared import one_line_errors
from wafl.cli.terminal import make_console
from wafl.config.known import default_of, known_method, known_methods, range_of


def methods(name: Annotated[str | None, Argument(metavar="[METHOD]")] = None) -> None:
    """List the methods: what each moves, what its clients send, its options and its paper."""
    with one_line_errors():
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
        if name is None:
            for header in ("method", "moves", "clients send", "options", "paper"):
                table.add_column(header, no_wrap=header == "method", overflow="fold")
            for each in known_methods().values():
                options = ", ".join(each.options) or "-"
                table.add_row(each.name, each.moves, each.sends, options, escape(each.short))
            make_console().print(table)
            return
        method = known_method(name)
        for header in ("option", "default", "range", "what it is"):
            table.add_column(header, no_wrap=header != "what it is", overflow="fold")
        for option in method.options.values():
            table.add_row(option.name, default_of(option), escape(range_of(option)), escape(option.doc))
        console = make_console()
        console.print(
            f"[bold]{method.name}[/]: {escape(method.summary)}\n\nmoves: {method.moves}\nclients send: {method.sends}\n"
            f"use it: {escape(method.use)}\npaper: {escape(method.paper)}"
        )
        console.print(table if method.options else "\nIt has no options of its own.")
