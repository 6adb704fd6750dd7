"""Measure the tests, and list those that take long in tests/long.txt: every test function whose cases sum to 0.3 s.

    .venv/bin/python tools/long_tests.py          (half an hour, one process)

Seconds are processor seconds of a usual machine: before each file, a million additions tell how slow this one is.
``make check`` leaves these tests out, ``make test`` runs the first case of each and ``make test-full`` every case.
Of the tests marked "every", ``make check`` runs the first case and ``make test`` every case: these hold certificates
above every attack or reject forged files and altered modules, and each case is the only one of its kind. The small
references are never listed: each case is the only one of its method.
"""

from __future__ import annotations

import os
import time
import timeit
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "long.txt"
SECONDS = 0.3
ADDITIONS = 0.015
"""Processor seconds of a million additions on a usual machine."""
REFERENCES = "/test_small_references.py::"
EVERY = (
    "/test_never_below.py::",
    "promises/test_read.py::",
    "promises/test_unusual_modules.py::",
    "promises/test_forged_receipts.py::",
    "promises/test_next_client_check.py::test_what_follows_is_proven_and_what_is_next_to_it_is_wrong",
    "promises/test_next_client_file.py::test_what_does_not_fit_together_is_refused",
    "promises/test_shares.py::test_no_move_gains_more_than_the_shares_say",
    "promises/test_verdicts.py::test_a_signature_has_one_spelling",
    "test_missing_packages.py::test_a_command_ends_before_it_computes_or_writes",
    "theory/test_certificates.py::test_weights_whose_fourth_powers_overflow_are_refused",
    "theory/test_unknown_modules.py::test_a_subclass_is_proven_as_what_its_forward_computes",
    "train/test_numbers_written_down.py::test_cohorts_and_parameters_are_the_ones_written_down",
    "train/test_statistics.py::test_no_server_makes_a_variance_negative",
    "train/test_statistics.py::test_statistics_are_averaged_whatever_the_server_does",
)
"""Parts of names of the tests of which ``make test`` runs every case."""


class Recorder:
    """Processor seconds per test function, including its fixtures and processes."""

    def __init__(self) -> None:
        self.seconds = defaultdict[str, float](float)
        self.path, self.pace = Path(), 1.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if item.path != self.path:
            self.path, self.pace = item.path, pace()
        before = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid.partition("[")[0]] += (sum(os.times()[:4]) - before) / self.pace


def pace() -> float:
    """Return this machine's time over a usual machine's time."""
    return timeit.timeit("x += 1", "x = 0", timer=time.process_time, number=10**6) / ADDITIONS


def main() -> None:
    os.chdir(ROOT)
    recorder = Recorder()
    if pytest.main(["-p", "no:xdist"], plugins=[recorder]) not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit("nothing was measured")
    slow = [name for name, seconds in recorder.seconds.items() if seconds >= SECONDS and "tests/" in name]
    listed = sorted(name for name in slow if REFERENCES not in name)
    marks = {name: " every" if any(part in name for part in EVERY) else "" for name in listed}
    LIST.write_text("".join(f"{recorder.seconds[name]:.1f} {name}{marks[name]}\n" for name in listed))
    print(f"{len(listed)} of {len(recorder.seconds)} test functions are long: see {LIST.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
