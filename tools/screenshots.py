"""Take a picture of every page of the site at two widths, and name those that are wider than the window.

    make docs
    .venv/bin/python tools/screenshots.py [--site site] [--output screenshots] [--only theory]

It needs the Chromium of the system and what ``.venv/installed-full`` installs, and fails if a page overflows.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTHS = (1400, 390)
OVERFLOW = "() => document.documentElement.scrollWidth - window.innerWidth"
WIDEST = """() => [...document.querySelectorAll("body *")].filter(each =>
  each.getBoundingClientRect().right > window.innerWidth + 1 && !each.closest("pre, table, .md-typeset__scrollwrap")
).slice(0, 3).map(each => each.tagName + "." + each.className + ": " + each.textContent.slice(0, 60))"""
MOST = 240_000
"""Milliseconds for one picture: long pages take more than a browser's usual 30 s on a busy machine."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, default=Path("site"))
    parser.add_argument("--output", type=Path, default=Path("screenshots"))
    parser.add_argument("--only", default="", help="pages whose name has this in it")
    given = parser.parse_args(argv)
    pages = [page for page in sorted(given.site.rglob("*.html")) if given.only in page.name and page.name != "404.html"]
    if not pages:
        raise SystemExit(f"{given.site} has no such page: run make docs first")
    playwright: Any = importlib.import_module("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        wide = pictures(browser, pages, given.site, given.output)
        browser.close()
    print(f"{len(pages)} pages at {' and '.join(map(str, WIDTHS))} px: {given.output}")
    if wide:
        raise SystemExit("wider than the window:\n" + "\n".join(wide))


def pictures(browser: Any, pages: Sequence[Path], site: Path, output: Path) -> list[str]:
    """Write the pictures, and return the pages that overflow."""
    wide: list[str] = []
    output.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        window = browser.new_page(viewport={"width": width, "height": 900})
        for page in pages:
            window.goto(page.resolve().as_uri())
            name = page.relative_to(site).with_suffix("").as_posix().replace("/", "-")
            window.screenshot(path=output / f"{name}-{width}.png", full_page=True, timeout=MOST)
            if window.evaluate(OVERFLOW) > 0:
                wide.append(f"{name} at {width} px: {window.evaluate(WIDEST)}")
        window.close()
    return wide


if __name__ == "__main__":
    main()
