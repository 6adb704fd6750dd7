"""``python tools/notebook.py`` writes ``docs/tutorial.ipynb`` from ``docs/tutorial.md``; a test holds it up to date."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
CODE = re.compile(r"```python\n(.*?)\n```", re.DOTALL)


def notebook(page: str) -> str:
    """The page as a notebook: its Python blocks are cells, and so is the text between them."""
    pieces = CODE.split(page)  # text, code, text, code, ..., text
    cells = [_cell("code" if number % 2 else "markdown", piece.strip()) for number, piece in enumerate(pieces)]
    numbered = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(cells) if cell["source"]]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": numbered, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1) + "\n"


def _cell(kind: str, text: str) -> dict[str, Any]:
    source = text.splitlines(keepends=True)
    outputs: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": source, **outputs}


if __name__ == "__main__":
    (DOCS / "tutorial.ipynb").write_text(notebook((DOCS / "tutorial.md").read_text()))
