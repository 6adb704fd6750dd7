"""Every kind of report behind a certificate, of two examples and three classes, against phi by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.oracles import phi
from wafl.objectives import Objective, ObjectiveState
from wafl.objectives.surrogate import single_lane
from wafl.theory.certificates.upper import REPORTS, AtRest, ErrorSurrogate, SearchedSurrogate, SlopeMove, UpperBound

WEIGHT = np.array([[1.0, 0.5], [-0.4, 1.2], [0.3, -0.9]])
X, Y = torch.tensor([[1.5, -0.6], [0.2, 1.1]], dtype=torch.float64), torch.tensor([0, 1])


def model() -> nn.Linear:
    result = nn.Linear(2, 3, bias=False).double()
    result.load_state_dict({"weight": torch.from_numpy(WEIGHT)})
    return result


def outputs() -> np.ndarray:
    return X.numpy() @ WEIGHT.T


def value(report: Objective, **scalars: float) -> Tensor:
    problem, x, y = single_lane(model(), X, Y)
    given = {name: torch.tensor([number], dtype=torch.float64) for name, number in scalars.items()}
    return report(problem, x, y, ObjectiveState(given)).value[0]


def by_brute_force(gamma: float) -> Tensor:
    rows = zip(outputs(), Y.tolist(), strict=True)
    return torch.tensor([phi.brute_force_phi(WEIGHT, row, label, gamma, 2) for row, label in rows])


def smooth() -> None:
    """Above the concavity limit, ``max ||w_j - w_k||^2 / 4``, an ascent finds the maximum, and nothing is added."""
    curvature = max(float(((one - other) ** 2).sum()) / 2 for one in WEIGHT for other in WEIGHT)
    result = value(UpperBound(), gamma=0.8 * curvature, curvature=curvature)
    torch.testing.assert_close(result, by_brute_force(0.8 * curvature), rtol=0, atol=1e-6)
    at = X.clone().requires_grad_()
    loss = cross_entropy(model()(at), Y, reduction="none")
    (slope,) = torch.autograd.grad(loss.sum(), at)
    for norm, dual in ((1, math.inf), (math.inf, 1)):  # no ascent: loss + ||slope||_*^2 / (4 gamma - 2 L)
        wanted = loss.detach() + torch.linalg.vector_norm(slope, dual, dim=1).square() / (4 * 5.0 - 2 * 3.0)
        torch.testing.assert_close(value(UpperBound(norm), gamma=5.0, curvature=3.0), wanted)


def linear() -> None:
    """Below that limit too, where the search has to cut the simplex."""
    for gamma in (0.05, 0.3):
        wanted = by_brute_force(gamma)
        result = value(SearchedSurrogate(), gamma=gamma, proven=1.0, tolerance=1e-3)
        assert bool(((wanted - 1e-7 <= result) & (result <= wanted + 1e-3)).all())
        reached = value(SearchedSurrogate(), gamma=gamma, proven=0.0, tolerance=1e-6)
        torch.testing.assert_close(reached, wanted, rtol=0, atol=1e-4)


def error() -> None:
    rows = zip(outputs(), Y.tolist(), strict=True)
    distances = torch.tensor([phi.distance_to_error(WEIGHT, row, label, 2) for row, label in rows], dtype=torch.float64)
    result = value(ErrorSurrogate(), gamma=0.3)
    torch.testing.assert_close(result, (1 - 0.3 * distances**2).clamp_min(0), rtol=0, atol=1e-6)
    assert 0 < float(result.min()) < float(result.max()) < 1


def moved() -> None:
    """Twice from where it is by 0.7 along the steepest slope, the second time the slope at the end of the first."""
    at, best = X, cross_entropy(model()(X), Y, reduction="none")
    for _ in range(2):
        at = at.detach().requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy(model()(at), Y, reduction="sum"), at)
        at = X + 0.7 * slope / slope.norm(dim=1, keepdim=True)
        best = torch.maximum(best, cross_entropy(model()(at), Y, reduction="none"))
    torch.testing.assert_close(value(SlopeMove(), distance=0.7), best.detach())


def rest() -> None:
    wanted = cross_entropy(model()(X), Y, reduction="none").detach()
    result = value(AtRest())
    assert bool(((wanted < result) & (result <= wanted * (1 + 1e-10))).all())


KINDS = {"smooth": smooth, "linear": linear, "error": error, "moved": moved, "rest": rest}


@pytest.mark.parametrize("kind", REPORTS)
def test_a_report_for_certificates_is_that_of_brute_force(kind: str) -> None:
    assert kind in KINDS, f"{kind} has no small reference: write one in tests/theory/test_small_references.py"
    KINDS[kind]()
