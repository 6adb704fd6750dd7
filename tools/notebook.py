"""Write ``docs/tutorial.ipynb`` from ``docs/tutorial.md``; ``--run`` first updates the outputs.

    .venv/bin/python tools/notebook.py [--run]

The output of a Python block is below it as text. Tests check that the notebook and the outputs are up to date.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
CODE = re.compile(r"```python\n(.*?)\n```(?:\n\n```text\n(.*?)\n```)?", re.DOTALL)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="run the page, and write what its blocks print below them")
    page = DOCS / "tutorial.md"
    if parser.parse_args(argv).run:
        page.write_text(with_outputs(page.read_text(encoding="utf-8")), encoding="utf-8")
    (DOCS / "tutorial.ipynb").write_text(notebook(page.read_text(encoding="utf-8")), encoding="utf-8")


def with_outputs(page: str) -> str:
    """Return the page with the output of its blocks, run in order in one namespace."""
    names: dict[str, Any] = {}

    def ran(block: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(block[1], names)
        lines = "\n".join(line.rstrip() for line in printed.getvalue().rstrip().splitlines())
        return f"```python\n{block[1]}\n```" + (f"\n\n```text\n{lines}\n```" if lines else "")

    return CODE.sub(ran, page)


def notebook(page: str) -> str:
    """Return the page as a notebook: blocks of Python and the text between them are cells."""
    pieces = CODE.split(page)  # text, code, output, text, code, output, ..., text
    cells: list[dict[str, Any]] = []
    for index in range(0, len(pieces), 3):
        cells.append({"cell_type": "markdown", "metadata": {}, "source": _lines(pieces[index].strip())})
        if index + 1 < len(pieces):
            cells.append(_code(pieces[index + 1], pieces[index + 2]))
    numbered = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(cells) if cell["source"]]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": numbered, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1) + "\n"


def _code(source: str, printed: str | None) -> dict[str, Any]:
    outputs = [{"name": "stdout", "output_type": "stream", "text": _lines(printed + "\n")}] if printed else []
    return {
        "cell_type": "code",
        "metadata": {},
        "source": _lines(source),
        "execution_count": None,
        "outputs": outputs,
    }


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    main()
