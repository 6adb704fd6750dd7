"""The bill of materials of a wheel, as CycloneDX: all that it requires, directly or not, in the versions found here.

    .venv/bin/python tools/sbom.py dist/*.whl          # writes dist/NAME.cdx.json

It lists the versions that tests use, without extras.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from wheel_environment import closure, declared


def main(wheel: Path) -> Path:
    name, version, *_ = wheel.name.split("-")
    parts = {str(package.name).lower(): package for package in closure(declared(wheel)).values()}
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                **_component(name.replace("_", "-"), version),
                "hashes": [{"alg": "SHA-256", "content": sha256(wheel.read_bytes()).hexdigest()}],
            }
        },
        "components": [_described(parts[key]) for key in sorted(parts)],
    }
    path = wheel.with_suffix(".cdx.json")
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def _described(package: Distribution) -> dict[str, Any]:
    terms = package.metadata.json.get("license_expression")
    known = {} if terms is None else {"licenses": [{"expression": terms}]}
    return {**_component(package.name, package.version), **known}


def _component(name: str, version: str) -> dict[str, Any]:
    return {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name.lower()}@{version}"}


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
