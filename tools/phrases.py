"""Find phrases that hide a noun, such as "that of": ``python tools/phrases.py`` lists them and fails if there are any.

Registrations, committed results, the change log and quotations (lines of Markdown that begin with ``>``) may have them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PHRASES = (
    *("that of", "those of", "whoever", "so many", "as many", "what is said", "says so", "of its own"),
    *("which there are none of", "nobody", "in one's own"),
)
SKIPPED = re.compile(r"CHANGELOG\.md|experiments/.*|.*\.(json|png|svg)|tools/phrases\.py|tests/test_phrases\.py")
"""Files that may have such phrases."""
_ANY = re.compile(r"\b(" + "|".join(phrase.replace(" ", r"[\s#>*]+") for phrase in PHRASES) + r")\b", re.IGNORECASE)


def found(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each phrase in a text, which may break a phrase over two lines."""
    lines = text.splitlines()
    for match in _ANY.finditer(text):
        line = text.count("\n", 0, match.start())
        if not lines[line].startswith(">"):
            yield line + 1, " ".join(match[0].split())


def main() -> int:
    """Print the phrases in all files that Git tracks, and return the exit status."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    status = 0
    for name in filter(None, listed.split("\0")):
        if SKIPPED.fullmatch(name) or not (ROOT / name).is_file():
            continue
        for line, phrase in found((ROOT / name).read_text(encoding="utf-8", errors="ignore")):
            print(f"{name}:{line}: {phrase!r} hides a noun: repeat it, or name the person")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
