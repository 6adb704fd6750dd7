"""Settings of all tests: their order, which is random, one thread per process, and who may start processes.

No test may depend on what ran before it. The order follows from the seed that is printed first: to repeat it, run the
same tests with the environment variable ``WAFL_TEST_SEED``.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

# Before torch is imported: a process that forks with idle threads of OpenMP leaves a child that may wait forever.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
from hypothesis import settings

Item = TypeVar("Item")

torch.set_num_threads(1)
settings.register_profile("wafl", deadline=None, derandomize=True)
settings.load_profile("wafl")

LISTED = {line.split()[1]: line.split()[2:] for line in Path(__file__).with_name("long.txt").read_text().splitlines()}
"""The test functions that take long, with ["every"] if ``make test`` runs every case."""

LONG = {name for name, mark in LISTED.items() if not mark}
"""The test functions that are marked ``long``: ``make check`` leaves them out."""

OURS = re.compile(r"python|pytest|wafl|flwr|flower-")
"""Programs that take seconds; any test may start git or uname."""

SEED = os.environ.setdefault("WAFL_TEST_SEED", str(time.time_ns() % 10**6))
"""Decides the order of the tests; the processes of pytest-xdist inherit it."""

running: pytest.Item | None = None

# Studies wait for the disk after every round; files in memory need not.
MEMORY = "/dev/shm"
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# Code that tests trust must not stay trusted.
state = tempfile.TemporaryDirectory(prefix="wafl-tests-")
os.environ["XDG_STATE_HOME"] = state.name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-case", choices=("long", "listed"), help="of these tests, run the first case only")


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.nodeid.partition("[")[0] in LONG:
        item.add_marker("long")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Print the seed, also with -q, which leaves out the header."""
    if (reporter := session.config.pluginmanager.get_plugin("terminalreporter")) is not None:
        reporter.write_line(f"Order of tests: WAFL_TEST_SEED={SEED}")


def shuffled(items: list[Item], file: Callable[[Item], Any], seed: str) -> list[Item]:
    """Return the items in a random order that keeps the items of a file together."""
    files: dict[Any, list[Item]] = {}
    for item in items:
        files.setdefault(file(item), []).append(item)
    order, result = random.Random(seed), list(files.values())
    order.shuffle(result)
    for each in result:
        order.shuffle(each)
    return [item for each in result for item in each]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, Any, Any]:
    """Shuffle the tests, then put files with long tests first: the short ones even out the end.

    Between the two, pytest selects tests by -m and -k, and puts those together that share a fixture.
    """
    position = {item: index for index, item in enumerate(items)}
    items[:] = shuffled(items, lambda item: item.path, SEED)
    result = yield
    if option := config.getoption("one_case"):
        reduced = LONG if option == "long" else LISTED.keys()
        first: dict[str, pytest.Item] = {}
        for item in sorted(items, key=lambda item: position[item]):
            function = item.nodeid.partition("[")[0]
            first.setdefault(function if function in reduced else item.nodeid, item)
        kept = set(first.values())
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    heavy = Counter(item.path for item in items if any(map(item.get_closest_marker, ("processes", "long"))))
    items.sort(key=lambda item: -heavy[item.path])
    return result


def seed_everything() -> None:
    """Seed the global generators, so that what a test draws does not depend on the tests before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Module):
        seed_everything()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    seed_everything()
    torch.set_num_threads(1)  # a test may change it: on a busy machine, more threads take several times as long


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    global running
    running = item
    try:
        return (yield)
    finally:
        running = None


def refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """``make check`` leaves out what starts processes by the mark alone, so the mark must not be forgotten."""
    if event not in ("os.fork", "os.posix_spawn", "subprocess.Popen") or running is None:
        return
    program = Path(os.fsdecode(arguments[0])).name if arguments else "python, as a fork"
    marked = any(running.get_closest_marker(mark) for mark in ("processes", "slow", "data"))
    if OURS.match(program) and not marked:
        raise RuntimeError(f"{running.nodeid} starts {program}: mark it with pytest.mark.processes")


sys.addaudithook(refuse_processes)
