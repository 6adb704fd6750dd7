"""Options of all benchmarks: ``--smallest`` runs everything once, in seconds, without useful measurements."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that prints the module docstring unchanged."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def read(parser: argparse.ArgumentParser, argv: Sequence[str] | None, **smallest: Any) -> argparse.Namespace:
    """Parse the arguments; with ``--smallest`` the values given here are the defaults."""
    parser.add_argument("--smallest", action="store_true", help="run everything once, as small as it goes")
    if parser.parse_args(argv).smallest:
        parser.set_defaults(**smallest)
    return parser.parse_args(argv)
