"""One thread per test process, and no Python processes except in tests that are marked ``processes`` or ``slow``."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

# Before torch is imported: a process that forks with idle threads of OpenMP leaves a child that may wait forever.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("wafl", deadline=None, derandomize=True)
settings.load_profile("wafl")

LINES = Path(__file__).with_name("long.txt").read_text().splitlines()
LONG = {name for _, name in map(str.split, LINES)}
"""The test functions that are marked ``long``: with ``--one-case``, only their first case runs."""

OURS = re.compile(r"python|pytest|wafl|flwr|flower-")
"""Programs that take seconds; any test may start git or uname."""

running: pytest.Item | None = None

# Studies wait for the disk after every round; files in memory need not.
MEMORY = "/dev/shm"
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# Code that tests trust must not stay trusted.
state = tempfile.TemporaryDirectory(prefix="wafl-tests-")
os.environ["XDG_STATE_HOME"] = state.name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-case", action="store_true", help="of tests that take long, run the first case only")


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.nodeid.partition("[")[0] in LONG:
        item.add_marker("long")


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with long tests come first: the short ones even out the end."""
    if config.getoption("one_case"):
        first: dict[str, pytest.Item] = {}
        for item in items:
            function = item.nodeid.partition("[")[0]
            first.setdefault(function if function in LONG else item.nodeid, item)
        kept = set(first.values())
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = first.values()
    heavy = Counter(item.path for item in items if any(map(item.get_closest_marker, ("processes", "long"))))
    items.sort(key=lambda item: -heavy[item.path])


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
