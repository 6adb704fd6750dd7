"""Kill, corrupt and starve: a run must come through, or say clearly that it cannot, and lose nothing.

    make test-faults          (.venv/bin/python tests/soak.py)

Each part prints what it did and how often anything was lost. ``tests/studies/test_soak.py`` runs a short form of each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import wafl
from tests.studies.commands import contents, outcome
from wafl.config.experiment import Experiment
from wafl.config.read import parse_experiment
from wafl.studies.study import Study
from wafl.train.checkpoint.checkpoint import Checkpoint

SCHEDULE = {"rounds": 8, "cohort": 4, "local_steps": 2, "batch_size": 16, "learning_rate": 0.1, "momentum": 0.5}
METHODS: list[dict[str, Any]] = [
    {"method": "WAFL", "name": "learned-gamma", "radius": 0.5, "learning_rate": [0.1, 0.2]},
    {"method": "FedRobust"},
    {"method": "AFL", "momentum": 0.0},
    {"method": "DRFA"},
    {"method": "WAFL", "gamma": [2.0, 4.0], "client_weights": "snapshot"},
    {"method": "FedPGM", "steps": 2},
    {"method": "FedFGSM"},
    {"method": "FedAvg"},
]


def experiment(**changes: Any) -> Experiment:
    content: dict[str, Any] = {
        "seeds": [0, 1],
        "data": {"num_clients": 8, "labels_per_client": 3},
        "schedule": SCHEDULE,
        "methods": METHODS,
        "attack": {"steps": 2},
        "evaluation": {"attacked": [0.5], "every": 3},
        **changes,
    }
    return parse_experiment(content, "soak")


def in_a_process(work: Callable[[], None], kill_after: float | None = None) -> int:
    """Run it in a child, which is killed (SIGKILL) after these seconds; gives its exit status, -9 if killed."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except SystemExit as leaving:
            status = int(leaving.code or 0)
        except BaseException as error:
            print(f"  child: {type(error).__name__}: {error}", file=sys.stderr)
        os._exit(status)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(path: Path, described: Experiment) -> None:
    study = Study.resume(path) if (path / "about.json").exists() else _fresh(path, described)
    study.run()


def _fresh(path: Path, described: Experiment) -> Study:
    shutil.rmtree(path, ignore_errors=True)  # killed before it had described itself: nothing was in it yet
    return Study.create(described, path)


def soak_kills(base: Path, kills: int, seed: int = 0) -> Counter[str]:
    """SIGKILL at random moments, and in the middle of writing; the end must be the uninterrupted one's."""
    draw, described, count = random.Random(seed), experiment(), Counter[str]()
    began = time.perf_counter()
    assert in_a_process(lambda: run(base / "whole", described)) == 0
    length, expected = time.perf_counter() - began, outcome(base / "whole")
    attempt = 0
    while count["killed at random"] + count["killed while writing"] < kills:
        path = base / f"killed-{attempt}"
        attempt += 1
        work = partial(run, path, described)
        for _ in range(1000):
            if draw.random() < 0.5:
                status = in_a_process(work, kill_after=draw.uniform(0.0, 0.7 * length))
                count["killed at random"] += status == -signal.SIGKILL
            else:
                status = in_a_process(partial(_killed_at_write, draw.randint(1, 120), work))
                count["killed while writing"] += status == -signal.SIGKILL
            if status == 0:
                break
            if count["killed at random"] + count["killed while writing"] >= kills:
                assert in_a_process(work) == 0
                break
        count["runs that differ"] += outcome(path) != expected
        shutil.rmtree(path)
    return count


def _killed_at_write(turn: int, work: Callable[[], None]) -> None:
    """Die at the turn-th time that anything is synced to disk."""
    left, sync = turn, os.fsync

    def dying(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)

    os.fsync = dying
    work()


def soak_corruption(base: Path, flips: int, seed: int = 0) -> Counter[str]:
    """Flip a byte of any file of a folder, interrupted or finished: recovered or refused, never silently wrong."""
    draw, described, count = random.Random(seed), experiment(methods=METHODS[:3]), Counter[str]()
    whole, half = base / "whole", base / "half"
    assert in_a_process(lambda: run(whole, described)) == 0
    expected = outcome(whole)
    assert in_a_process(lambda: _killed_at_write(60, lambda: run(half, described))) == -signal.SIGKILL
    for flip in range(flips):
        state = ("half", "whole")[flip % 2]
        path = base / "damaged"
        shutil.copytree(base / state, path)
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.stat().st_size > 0]
        file = draw.choice(files)
        data = bytearray(file.read_bytes())
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        file.write_bytes(data)
        before, message = contents(path), ""
        try:
            run(path, described)
        except ValueError as error:
            message = str(error)
        if message:
            count[f"{state}: refused"] += 1
            count["refused without saying where"] += str(path) not in message
            count["refused but changed"] += any(contents(path).get(name) != old for name, old in before.items())
        else:
            right = outcome(path) == expected
            count[f"{state}: recovered" if right else f"{state}: silently wrong"] += 1
        shutil.rmtree(path)
    return count


def soak_full_disk(base: Path, limits: int, seed: int = 0) -> Counter[str]:
    """No file may grow past a limit, at which writing fails as on a full disk; with room again all is there."""
    draw, described, count = random.Random(seed), experiment(methods=METHODS[:3]), Counter[str]()
    assert in_a_process(lambda: run(base / "whole", described)) == 0
    expected = outcome(base / "whole")

    def starved(limit: int, path: Path) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            run(path, described)
        except OSError:
            sys.exit(3)

    for number in range(limits):
        path = base / f"full-{number}"
        status = in_a_process(partial(starved, draw.choice([500, 3000, 8000, 12000, 20000]), path))
        count["ran out of disk"] += status == 3
        assert status in (0, 3), status
        assert in_a_process(partial(run, path, described)) == 0
        count["runs that differ"] += outcome(path) != expected
        shutil.rmtree(path)
    return count


def soak_many_rounds(base: Path, rounds: int, num_clients: int = 3, method: wafl.Method | None = None) -> Counter[str]:
    """A round, its checkpoint included, costs the same time and bytes among the last as among the first.

    The first rounds belong to another training, begun right after the last: what else the machine does has changed
    since the first one began.
    """
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(4 * num_clients, 3, generator=draw), torch.arange(4 * num_clients) % 2
    clients = wafl.Federation.from_offsets(x, y, torch.arange(0, 4 * num_clients + 1, 4))
    some, every = min(max(rounds // 10, 50), 1000), 10

    def train(folder: Path, rounds: int) -> list[float]:
        times: list[float] = []
        wafl.fit(
            wafl.models.mlr(clients),
            clients,
            method or wafl.FedAvg(),
            rounds=rounds,
            cohort=2,
            local_steps=1,
            checkpoint=Checkpoint(folder, every=every),
            callbacks=[lambda moment: times.append(time.process_time())],
        )
        return times

    before, checkpoint = bytes_written(), base / "checkpoint"
    times = train(checkpoint, rounds)
    written = bytes_written() - before
    again = train(base / "again", some + 10)
    first, last = again[-1] - again[-1 - some], times[-1] - times[-1 - some]
    states = [sum(file.stat().st_size for file in folder.iterdir()) for folder in checkpoint.glob("0*")]
    log = (checkpoint / "rounds.journal").stat().st_size
    count = Counter[str]()
    count["rounds"], count["clients"] = rounds, num_clients
    count["microseconds of a round, among the first"] = round(1e6 * first / some)
    count["microseconds of a round, among the last"] = round(1e6 * last / some)
    count["bytes of the state"], count["bytes of the log per round"] = max(states), round(log / rounds)
    count["bytes written"] = written
    count["rounds that grew slower"] = int(last > 1.5 * first)
    count["logs that grew faster than rounds"] = int(log > 500 * rounds)
    count["bytes beyond twice the states and the log"] = max(0, written - 2 * (rounds // every) * max(states) - log)
    return count


def bytes_written() -> int:
    """What this process has written so far, to files of any kind; 0 where the system does not say."""
    table = Path("/proc/self/io")
    return int(table.read_text().split()[3]) if table.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--limits", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.rounds < LEAST:
        parser.error(f"--rounds {options.rounds} must be at least {LEAST}: first and last rounds are compared")
    torch.set_num_threads(1)
    lost = 0
    parts: list[tuple[str, Callable[[Path], Counter[str]]]] = [
        ("killed and resumed", lambda base: soak_kills(base, options.kills, options.seed)),
        ("one byte flipped", lambda base: soak_corruption(base, options.flips, options.seed)),
        ("disk full", lambda base: soak_full_disk(base, options.limits, options.seed)),
        ("many rounds", lambda base: soak_many_rounds(base, options.rounds)),
        ("many clients", lambda base: soak_many_rounds(base, options.rounds // 50, 10_000, wafl.DRFA())),
    ]
    for name, part in parts:
        with tempfile.TemporaryDirectory() as base:
            began = time.perf_counter()
            count = part(Path(base))
            print(
                f"{name} ({time.perf_counter() - began:.0f} s): {json.dumps(dict(sorted(count.items())))}", flush=True
            )
            lost += sum(count[what] for what in LOSSES)
    print(f"lost: {'nothing' if lost == 0 else lost}")
    sys.exit(lost != 0)


LEAST = 3000
"""Rounds; with many clients it is a fiftieth, of which the last 50 are compared with the first."""
LOSSES = (
    "runs that differ",
    "half: silently wrong",
    "whole: silently wrong",
    "refused but changed",
    "refused without saying where",
    "rounds that grew slower",
    "logs that grew faster than rounds",
    "bytes beyond twice the states and the log",
)

if __name__ == "__main__":
    main()
