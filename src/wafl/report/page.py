"""From blocks to one HTML file: styles, scripts and Plotly are inside, and nothing is fetched from anywhere."""

import base64
import gzip
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from wafl.base.extras import require
from wafl.base.files import write_whole
from wafl.report.blocks import Page

PAGE = "a report page"


def check_page_packages() -> None:
    """Raise a ValueError if a package that pages need is missing; call it before the numbers of a page are computed."""
    for module in ("jinja2", "plotly"):
        require(module, extra="report", what=PAGE)


def write_page(page: Page, path: Path) -> Path:
    """Write the page to a file, which replaces an earlier one as a whole; returns its path."""
    text = as_html(page)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())
    return path


def as_html(page: Page, *, live: bool = False) -> str:
    """The page as text; if ``live``, a server keeps it up to date, and has the scripts too."""
    plotly = "" if live else packed_plotly()
    return _template().render(page=page, live=live, css=_text_of("page.css"), js=_text_of("page.js"), plotly=plotly)


def plotly_script() -> bytes:
    """Plotly's JavaScript, from its Python package."""
    return (files(require("plotly", extra="report", what=PAGE)) / "package_data" / "plotly.min.js").read_bytes()


@cache
def packed_plotly() -> str:
    """Plotly's JavaScript, compressed: a third of its size, and browsers unpack it."""
    return base64.b64encode(gzip.compress(plotly_script(), mtime=0)).decode()


def plain(value: Any) -> Any:
    """The same value for JSON, with None in place of what JSON cannot say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def _text_of(name: str) -> str:
    return (files("wafl.report") / name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    jinja2 = require("jinja2", extra="report", what=PAGE)
    loader = jinja2.FunctionLoader(_text_of)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["plain"] = plain
    return environment.get_template("page.html")
