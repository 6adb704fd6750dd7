"""AFL and DRFA on games whose answer is known in closed form.

A client with the examples ``(c, c t + s)`` and ``(c, c t - s)`` and a model ``w x`` has the loss
``c^2 (w - t)^2 + s^2``: a parabola with a curvature, a position and a height of our choice.
"""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

import wafl
from wafl.engine.client.task import ClientTask
from wafl.engine.lanes.layout import Lanes
from wafl.parts.messages import Replies
from wafl.parts.schedule import Schedule
from wafl.rounds.algorithm import Algorithm
from wafl.tasks.structured import make_task


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


def test_one_afl_round_gives_the_model_and_the_weights_computed_by_hand():
    clients = wafl.Federation.from_arrays(UNEQUAL_CURVATURE[0], test_fraction=0)
    seen = []
    wafl.fit(
        line(0.0),
        clients,
        wafl.AFL(weights_step=0.02),
        rounds=1,
        local_steps=1,
        batch_size=None,
        learning_rate=0.1,
        loss="squared_error",
        on_round=lambda place, record, state: seen.append(state),
    )
    # At w = 0 the losses are 3/4 and 4 and the slopes 0 and -8; lambda is still (1/2, 1/2).
    assert float(seen[0].params[0]) == pytest.approx(0.1 * 0.5 * 8)
    half_gap = 0.02 * (4 - 0.75) / 2
    assert seen[0].client_weights.tolist() == pytest.approx([0.5 - half_gap, 0.5 + half_gap])


def drfa(sizes: list[int], step=0.01, **schedule):
    return Algorithm(wafl.DRFA(weights_step=step), Schedule(rounds=10_000, **schedule), sizes, lambda params: 0.0)


LAMBDA = torch.tensor([0.55, 0.0, 0.3, 0.15], dtype=torch.float64)
ROUNDS = 300


def test_drfa_draws_by_lambda_with_replacement_and_takes_the_plain_mean():
    """Client i replies with the unit vector e_i, so the mean shows how often each was drawn."""
    algorithm = drfa([7] * 4, cohort=3, local_steps=5)
    start = algorithm.init(torch.zeros(4, dtype=torch.float64))
    total, most = torch.zeros(4, dtype=torch.float64), 0.0
    for t in range(ROUNDS):
        state = replace(start, round=t, client_weights=LAMBDA)
        query = algorithm.ask(state)
        rows = torch.eye(4, dtype=torch.float64)[list(query.clients)]
        nothing = torch.zeros(len(rows))
        told = algorithm.tell(
            state, query, Replies(query.clients, nothing, nothing, {"params": rows, "snapshot": 10 * rows})
        )
        counts = 3 * told.params
        torch.testing.assert_close(counts, counts.round(), atol=1e-12, rtol=0)
        assert float(counts.sum()) == pytest.approx(3)
        assert counts.nonzero()[:, 0].tolist() == list(query.clients), "each client that was drawn is asked once"
        torch.testing.assert_close(told.vectors["snapshot"], 10 * told.params)
        assert told.round == t, "the round ends with the losses"
        total, most = total + counts, max(most, float(counts.max()))
    assert most == 3.0
    share, noise = total / (3 * ROUNDS), (LAMBDA * (1 - LAMBDA) / (3 * ROUNDS)).sqrt()
    assert bool(((share - LAMBDA).abs() <= 4 * noise).all()), share


def test_drfa_weights_climb_the_losses_at_the_snapshot():
    """Inside the simplex the projection subtracts the mean: ``lambda + d - mean(d)``."""
    step, local_steps, asked = 0.01, 5, 3
    algorithm = drfa([7] * 4, step=lambda t: step / (1 + t), cohort=asked, local_steps=local_steps)
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    losses = torch.tensor([0.3, 0.1, 0.2, 0.4], dtype=torch.float64)
    times_asked: Counter[int] = Counter()
    for t in range(ROUNDS):
        state = replace(
            algorithm.init(torch.zeros(2)), round=t, client_weights=weights, vectors={"snapshot": torch.ones(2)}
        )
        query = algorithm.ask(state)
        assert query.kind == "loss"
        assert torch.equal(query.params, torch.ones(2)), "losses are asked at the snapshot"
        assert len(set(query.clients)) == asked
        times_asked.update(query.clients)
        told = algorithm.tell(state, query, Replies(query.clients, losses[list(query.clients)], torch.zeros(asked)))
        climb = torch.zeros(4, dtype=torch.float64)
        for client in query.clients:
            climb[client] = local_steps * step / (1 + t) * (4 / asked) * losses[client]
        torch.testing.assert_close(told.client_weights, weights + climb - climb.mean())
        assert (told.round, told.vectors) == (t + 1, {})
    noise = (ROUNDS * 0.75 * 0.25) ** 0.5
    assert all(abs(times_asked[client] - 0.75 * ROUNDS) <= 4 * noise for client in range(4)), times_asked


@pytest.mark.parametrize(
    ("work", "sizes", "steps"),
    [
        ({"local_steps": 5, "batch_size": None}, [2, 2, 2], [5, 5, 5]),
        ({"local_epochs": 2, "batch_size": 2}, [2, 6, 4], [2, 6, 4]),
    ],
)
def test_drfa_takes_its_snapshot_at_one_uniformly_random_step(work, sizes, steps):
    """``w_k = t + (w_0 - t) (1 - 2 rate c^2)^k``; a client that finishes earlier gives its last step."""
    rate, shapes = 0.1, [(1.0, 0.5), (0.5, -1.0), (1.5, 2.0)]
    pairs = [parabola(c, t, copies=size // 2) for (c, t), size in zip(shapes, sizes, strict=True)]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    algorithm = drfa(sizes, learning_rate=rate, **work)
    task = make_task(line(-1.0).double(), "squared_error")
    engine = Lanes(ClientTask(task, None, algorithm.schedule.local_work, clients.train))
    seen: Counter[int] = Counter()
    for t in range(200):
        query = algorithm.ask(replace(algorithm.init(task.initial()), round=t))
        step = query.iterates["snapshot"]
        seen[step] += 1
        if t >= 20:
            continue
        (replies,) = engine.run([query])
        for row, client in enumerate(query.clients):
            (c, target), last = shapes[client], steps[client]
            path = [target + (-1.0 - target) * (1 - 2 * rate * c**2) ** k for k in range(last + 1)]
            assert float(replies.vectors["snapshot"][row, 0]) == pytest.approx(path[min(step, last)], abs=1e-9)
            assert float(replies.params[row, 0]) == pytest.approx(path[-1], abs=1e-9)
    longest = max(steps)
    assert set(seen) == set(range(1, longest + 1))
    assert max(abs(count - 200 / longest) for count in seen.values()) <= 4 * (200 / longest) ** 0.5
