"""AFL and DRFA on games whose answer is known in closed form.

A client with the examples ``(c, c t + s)`` and ``(c, c t - s)`` and a model ``w x`` has the loss
``c^2 (w - t)^2 + s^2``: a parabola with a curvature, a position and a height of our choice.
"""

import pytest
import torch
from torch import nn

import wafl


def parabola(c: float, t: float, height: float = 0.0, copies: int = 1):
    s = height**0.5
    return [[c], [c]] * copies, [c * t + s, c * t - s] * copies


def line(start: float) -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, start)
    return model


def decreasing(first: float, after: float):
    return lambda t: first / (1 + t / after) ** 0.5


def averages(clients, method, rounds: int, **options) -> tuple[float, torch.Tensor]:
    """The mean of w and of lambda over the second half of the rounds, when the start no longer matters."""
    params, weights = [], []

    def collect(place, record, state):
        params.append(float(state.params[0]))
        weights.append(state.client_weights)

    wafl.fit(
        line(-1.0), clients, method, rounds=rounds, batch_size=None, loss="squared_error", on_round=collect, **options
    )
    half = rounds // 2
    return sum(params[half:]) / (rounds - half), torch.stack(weights[half:]).mean(0)


# f_1 = w^2 + 3/4 and f_2 = 4 (w - 1)^2 meet at w = 1/2, where their slopes are 1 and -4.
UNEQUAL_CURVATURE = [parabola(1.0, 0.0, 0.75), parabola(2.0, 1.0)], 0.5, [0.8, 0.2]
# f_1 = w^2 + 1/5 and f_2 = (w - 1)^2 meet at w = 2/5, where their slopes are 4/5 and -6/5.
UNEQUAL_HEIGHT = [parabola(1.0, 0.0, 0.2), parabola(1.0, 1.0)], 0.4, [0.6, 0.4]
# f_1 = w^2 + 2 lies above f_2 = (w - 1)^2 around its own minimum: only the first client counts.
ONE_SIDED = [parabola(1.0, 0.0, 2.0), parabola(1.0, 1.0)], 0.0, [1.0, 0.0]


@pytest.mark.parametrize(("pairs", "w", "weights"), [UNEQUAL_CURVATURE, UNEQUAL_HEIGHT, ONE_SIDED])
def test_afl_finds_the_saddle_point(pairs, w, weights):
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    method = wafl.AFL(weights_step=decreasing(0.1, 100))
    w_mean, weights_mean = averages(clients, method, 300, local_steps=1, learning_rate=decreasing(0.1, 100))
    assert w_mean == pytest.approx(w, abs=1e-2)
    assert weights_mean.tolist() == pytest.approx(weights, abs=1e-2)


def test_drfa_finds_the_saddle_point():
    """Two kinds of clients, 50 of each, so that drawing them by lambda makes little noise.

    f_1 = w^2 + 3/5 and f_2 = (w - 1)^2 meet at w = 1/5, where their slopes are 2/5 and -8/5. Their curvatures
    agree, so local steps do not move the saddle point.
    """
    kind = 50
    pairs = [parabola(1.0, 0.0, 0.6)] * kind + [parabola(1.0, 1.0)] * kind
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    method = wafl.DRFA(weights_step=decreasing(0.1 / kind, 20))
    w_mean, weights_mean = averages(clients, method, 200, local_steps=2, learning_rate=decreasing(0.1, 20))
    assert w_mean == pytest.approx(0.2, abs=1e-2)
    assert float(weights_mean[:kind].sum()) == pytest.approx(0.8, abs=1e-2)
