"""How much of the package one steady-state round of FedAvg runs through: files, and nested calls below the loop."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from torch import nn

import wafl
from wafl.train.loop import Trainer

PACKAGE = Path(wafl.__file__).parent
LOOP = Trainer._train_lanes.__code__
INSIDE = {"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>"}
"""Comprehensions and lambdas are part of the function that has them."""
MOST_FILES, DEEPEST = 32, 12


class Trace:
    """The files and the longest chain of functions of the package, while ``active``."""

    def __init__(self) -> None:
        self.active, self.files, self.longest = False, set[str](), list[str]()
        self._frames: list[FrameType] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(str(PACKAGE)) or code.co_name in INSIDE:
            return
        if event == "return":
            if self._frames and self._frames[-1] is frame:
                self._frames.pop()
            return
        self._frames.append(frame)
        if not self.active:
            return
        codes = [each.f_code for each in self._frames]
        self.files.add(str(Path(code.co_filename).relative_to(PACKAGE)))
        chain = [each.co_qualname for each in codes[codes.index(LOOP) + 1 :]]
        self.longest = max(self.longest, chain, key=len)


@contextmanager
def profiled(trace: Trace) -> Generator[None, None, None]:
    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        yield
    finally:
        sys.setprofile(before)


class ThirdRound(wafl.callbacks.Callback):
    """Trace the third round: everything that is made once exists by then."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._rounds = trace, 0

    def on_progress(self, progress: Any) -> None:
        self._rounds += 1
        self._trace.active = self._rounds == 2


CLIENTS = wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=5, seed=0)


@pytest.mark.parametrize(
    "model", [wafl.models.mlr(CLIENTS), wafl.models.cnn(CLIENTS, channels=(4, 8))], ids=["linear", "cnn"]
)
def test_a_round_of_fedavg_stays_small(model: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    trace = Trace()
    with profiled(trace):
        wafl.fit(model, CLIENTS, wafl.FedAvg(), rounds=4, local_steps=2, callbacks=[ThirdRound(trace)])
    with capsys.disabled():
        print(f"\none round of FedAvg: {len(trace.files)} files, {len(trace.longest)} functions below the loop")
    assert {"train/loop.py", "train/server.py", "train/client.py", "train/step.py"} <= trace.files
    assert len(trace.files) <= MOST_FILES, sorted(trace.files)
    assert len(trace.longest) <= DEEPEST, trace.longest
