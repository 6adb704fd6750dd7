"""The second attack frontier: rates per size against a plain search, the network's shape, and what a draft refuses."""

from __future__ import annotations

import pytest
import torch

from research.registered import attack_frontier_2 as frontier
from research.registered.attack_frontier import Job
from research.registered.resnet import ResNet18
from research.registration import draft_of


def test_every_size_chooses_its_own_rate_and_extends_its_own_grid() -> None:
    """Scores peak at another rate for each size; only rows whose best is at an edge try more."""
    peaks = {("a", 1.0): 0.1, ("a", 2.0): 0.8, ("b", 1.0): 0.0125}
    tried: set[tuple[float, float]] = set()

    def trial(row: tuple[str, float], rate: float) -> Job:
        return Job("data", *row, rate, 100, True)

    def score(job: Job) -> float:
        peak = peaks[job.family, job.size]
        return -max(job.rate / peak, peak / job.rate)

    def do(jobs: list[Job]) -> None:
        tried.update((job.size, job.rate) for job in jobs if job.family == "a")

    assert frontier.rates_of(list(peaks), trial, score, [0.05, 0.1, 0.2], 2, do) == peaks
    assert {rate for size, rate in tried if size == 1.0} == {0.05, 0.1, 0.2}
    assert {rate for size, rate in tried if size == 2.0} == {0.05, 0.1, 0.2, 0.4, 0.8}


def test_the_resnet_has_eighteen_layers_and_keeps_examples_apart() -> None:
    model = ResNet18(3, 10, width=4)
    main = [name for name, each in model.named_modules() if hasattr(each, "weight") and each.weight.ndim > 1]
    assert len([name for name in main if "shortcut" not in name]) == 18
    with torch.device("meta"):
        whole = sum(parameter.numel() for parameter in ResNet18(3, 10).parameters())
    assert whole == 11_173_962, "the same number as with BatchNorm"
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(x)[1:2], model(x[1:2]))


def test_a_draft_runs_at_its_smallest_alone() -> None:
    if not draft_of(frontier.NAME).is_file():
        return
    with pytest.raises(SystemExit, match="is a draft"):
        frontier.main([])
