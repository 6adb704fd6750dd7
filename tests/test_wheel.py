"""What comes with the wheel: the package alone, and its bill of materials."""

from __future__ import annotations

import json
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest


def test_the_bill_of_materials_lists_what_the_wheel_requires_directly_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "tools")
    sys.modules.pop("sbom", None)
    import sbom

    wheel = tmp_path / "wafl_learn-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "wafl_learn-1.2.dist-info/METADATA", "Name: wafl-learn\nVersion: 1.2\nRequires-Dist: scipy>=1\n"
        )
    content = json.loads(sbom.main(wheel).read_text())
    assert content["metadata"]["component"]["purl"] == "pkg:pypi/wafl-learn@1.2"
    assert f"pkg:pypi/numpy@{np.__version__}" in {part["purl"] for part in content["components"]}


def test_research_and_benchmarks_are_in_the_source_distribution_and_not_in_the_wheel() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    targets = project["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"] == {"packages": ["src/wafl"]}
    assert {"benchmarks", "experiments", "research"} <= {*targets["sdist"]["include"]}
