"""An environment for the built wheel: the packages it declares, and those they require, linked from ours; no others.

    .venv/bin/python tools/wheel_environment.py .venv-wheel dist/*.whl

An undeclared dependency is missing there, and torch is not installed a second time.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement


def main(folder: Path, wheel: Path) -> None:
    venv.create(folder, clear=True)
    python = folder / "bin" / "python"
    paths = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", vars=paths))
    for package in closure(declared(wheel)).values():
        for name in {path.parts[0] for path in package.files or ()} - {"..", "__pycache__"}:
            link = packages / name
            if not link.exists():
                link.symlink_to(Path(str(package.locate_file(name))).resolve())
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)


def declared(wheel: Path) -> list[Requirement]:
    """Return the requirements in the wheel's metadata, without extras."""
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    return [Requirement(line) for line in metadata.get_all("Requires-Dist") or []]


def closure(requirements: list[Requirement]) -> dict[str, Distribution]:
    """Return the distributions that these require, directly or not."""
    packages: dict[str, Distribution] = {}
    pending = [(requirement, "") for requirement in requirements]
    while pending:
        requirement, extra = pending.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        named = distribution(requirement.name)
        if not requirement.specifier.contains(named.version, prereleases=True):
            raise SystemExit(f"{requirement} is required, and {named.version} is installed")
        for each in ("", *requirement.extras):
            if f"{requirement.name}[{each}]" not in packages:
                packages[f"{requirement.name}[{each}]"] = named
                pending += [(Requirement(line), each) for line in named.requires or []]
    return packages


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]))
