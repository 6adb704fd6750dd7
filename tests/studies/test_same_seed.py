"""The commands of docs/same-seed.md end with the same bits, at their smallest size."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "same-seed.md").read_text(encoding="utf-8")
BLOCK = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0]
SMALLER = (("--rounds 20", "--rounds 2"), ("--rounds 10", "--rounds 1"), ("rounds=20", "rounds=2"))


def commands() -> list[list[str]]:
    """Return the arguments of each ``wafl`` command of the page, with a tenth of the rounds."""
    text = BLOCK
    for old, new in SMALLER:
        assert old in text
        text = text.replace(old, new)
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("wafl ")]


def digests(folder: Path) -> dict[str, str]:
    return {file.parts[-3]: sha256(file.read_bytes()).hexdigest() for file in folder.glob("runs/*/wafl/*.safetensors")}


@pytest.mark.slow
def test_all_commands_of_the_page_end_with_the_same_bits(tmp_path: Path) -> None:
    for words in commands():
        program = str(Path(sys.executable).parent / "wafl")
        subprocess.run([program, *words], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    found = digests(tmp_path)
    assert found.keys() == {"once", "nodes", "half"}
    assert len(set(found.values())) == 1
