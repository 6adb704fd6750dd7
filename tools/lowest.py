"""Print the lowest versions that pyproject.toml promises, one pin per line: constraints for pip.

    python tools/lowest.py > constraints-lowest.txt

Of the extras, all but natural, wandb and flower, which has its own, higher lower bounds. Click is the constraints'
version: an old typer takes any, and loses help texts with the newest. With TORCH_FROM_CONSTRAINTS=1 so is torch, for
machines that have no older one.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = {"dev", "flower", "natural", "wandb"}


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [extra for extra in project["optional-dependencies"] if extra not in LEFT_OUT]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    lowest: dict[str, tuple[int, ...]] = {}
    tested = (ROOT / "constraints.txt").read_text()
    for line in lines:
        match = re.match(r"([\w-]+)(?:\[[\w,-]+\])?>=([\d.]+)", line)
        if match is None:
            raise SystemExit(f"{line!r} in pyproject.toml promises no lowest version: write it as name>=1.2")
        version = tuple(int(part) for part in match[2].split("."))
        lowest[match[1]] = max(version, lowest.get(match[1], ()))
    for name in ["click", *(["torch"] if os.environ.get("TORCH_FROM_CONSTRAINTS") else [])]:
        (pinned,) = re.findall(rf"^{name}==([\d.]+)", tested, re.MULTILINE)
        lowest[name] = tuple(int(part) for part in pinned.split("."))
    for name, version in sorted(lowest.items()):
        print(f"{name}=={'.'.join(str(part) for part in version)}")


if __name__ == "__main__":
    main()
