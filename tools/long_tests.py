"""Measure the tests, and list those that take long in tests/long.txt: every test function whose cases sum to 0.3 s.

    .venv/bin/python tools/long_tests.py          (ten minutes, one process, on an idle machine)

``make check`` leaves these out, ``make test`` runs the first case of each, and ``make test-full`` runs every case.
The small references are never listed, nor what holds certificates above every attack, nor what refuses forged files:
each case is the only one of its method, its kind of network or its forgery that both of them run.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "long.txt"
SECONDS = 0.3
ALWAYS = ("test_small_references.py", "test_never_below.py", "promises/test_read.py")
"""The files of these names, every case of which ``make check`` runs."""


class Recorder:
    """Processor seconds per test function, with those of its fixtures and processes."""

    def __init__(self) -> None:
        self.seconds = defaultdict[str, float](float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid.partition("[")[0]] += sum(os.times()[:4]) - before


def main() -> None:
    os.chdir(ROOT)
    recorder = Recorder()
    if pytest.main(["-p", "no:xdist"], plugins=[recorder]) not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit("nothing was measured")
    slow = [name for name, seconds in recorder.seconds.items() if seconds >= SECONDS and "tests/" in name]
    listed = sorted(name for name in slow if not name.partition("::")[0].endswith(ALWAYS))
    LIST.write_text("".join(f"{recorder.seconds[name]:.1f} {name}\n" for name in listed))
    print(f"{len(listed)} of {len(recorder.seconds)} test functions are long: see {LIST.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
