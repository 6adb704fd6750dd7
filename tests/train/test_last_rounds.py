"""``average_last``: the mean of the last rounds' models is what a run gives back, and training does not notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import wafl
from tests.oracles import plain
from wafl.parts.messages import State
from wafl.parts.schedule import Schedule
from wafl.train.last_rounds import mean_of, with_mean

SCHEDULE: dict[str, Any] = {"local_epochs": 1, "batch_size": 4, "learning_rate": 0.2, "seed": 3}


def pairs() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.rand(size, 4, generator=generator), torch.arange(size) % 3) for size in (9, 4, 12, 7)]


CLIENTS = wafl.Federation.from_arrays(pairs(), test_fraction=0)


def fit(method: wafl.Method, **options: Any) -> wafl.Run:
    return wafl.fit(wafl.models.mlr(CLIENTS), CLIENTS, method, **{**SCHEDULE, "rounds": 5, **options})


def flat(params: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in params.values()])


@pytest.mark.parametrize("gamma", [None, 2.0])
def test_it_is_the_mean_of_a_plain_loops_models(gamma: float | None) -> None:
    """0.5 of five rounds are the last three; the plain loop trains anew for each."""
    run = fit(wafl.FedAvg() if gamma is None else wafl.WAFL(gamma=gamma), average_last=0.5)
    model = wafl.models.mlr(CLIENTS)
    ends = [plain.train(model, pairs(), rounds=rounds, gamma=gamma, **SCHEDULE) for rounds in (3, 4, 5)]
    for name, value in run.params.items():
        expected = torch.stack([end[name] for end in ends]).mean(0)
        torch.testing.assert_close(value, expected.to(value), rtol=0, atol=1e-5)
        torch.testing.assert_close(run.last_params[name], ends[-1][name].to(value), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", [wafl.DRFA(weights_step=0.1), wafl.SCAFFOLD(), wafl.FedAdam(), wafl.AFL()])
def test_training_does_not_notice_and_learned_weights_are_averaged_too(method: wafl.Method) -> None:
    seen: list[State] = []
    options: dict[str, Any] = {"cohort": 3} if method.name != "AFL" else {"local_epochs": None, "local_steps": 1}
    run = fit(method, average_last=0.4, callbacks=[lambda moment: seen.append(moment.state)], **options)
    usual = fit(method, **options)
    assert torch.equal(flat(run.last_params), flat(usual.params))
    assert usual.last_params is usual.params
    torch.testing.assert_close(run.client_weights, (seen[3].client_weights + seen[4].client_weights) / 2)
    torch.testing.assert_close(flat(run.params), (seen[3].params + seen[4].params) / 2)


def test_it_varies_in_a_sweep_and_is_kept_on_disk(tmp_path: Path) -> None:
    grid = {"average_last": [None, 0.4], "seed": [0, 1]}
    rest = {name: value for name, value in SCHEDULE.items() if name != "seed"}
    for run in wafl.sweep(wafl.models.mlr(CLIENTS), CLIENTS, wafl.DRFA(), grid, rounds=5, cohort=3, **rest):
        alone = fit(wafl.DRFA(), cohort=3, **run.point)
        loaded = wafl.load_run(run.save(tmp_path / str(run.point)))
        for other in (alone, loaded, run.to("cpu")):
            assert torch.equal(flat(run.params), flat(other.params))
            assert torch.equal(flat(run.last_params), flat(other.last_params))


def test_a_run_that_diverges_averages_its_good_rounds() -> None:
    def bursts(number: int) -> float:
        return 1e300 if number == 4 else 0.2

    rest = {name: value for name, value in SCHEDULE.items() if name != "learning_rate"}
    rates = {"learning_rate": [0.2, bursts]}
    _, broken = wafl.sweep(wafl.models.mlr(CLIENTS), CLIENTS, wafl.FedAvg(), rates, rounds=5, average_last=0.6, **rest)
    assert broken.diverged
    after_3, after_4 = (flat(fit(wafl.FedAvg(), rounds=rounds).params) for rounds in (3, 4))
    torch.testing.assert_close(flat(broken.params), (after_3 + after_4) / 2)


def test_more_rounds_begin_the_window_anew() -> None:
    def trained(state: State, schedule: Schedule) -> State:
        while state.round < schedule.rounds:
            after = State(state.round + 1, torch.tensor([state.round + 1.0]), torch.ones(1), {}, state.vectors)
            state = with_mean(schedule.rounds, schedule.average_last or 0.0, state, after)
        return state

    first = trained(State(0, torch.zeros(1), torch.ones(1)), Schedule(rounds=4, local_steps=1, average_last=0.5))
    mean, _ = mean_of(first) or (None, None)
    assert mean == 3.5  # rounds 3 and 4
    further = trained(first, Schedule(rounds=6, local_steps=1, average_last=1.0))
    mean, _ = mean_of(further) or (None, None)
    assert mean == 5.5, "rounds 5 and 6: those before are in a mean from which they cannot be taken"


def test_a_client_that_joins_had_no_weight_before() -> None:
    state = State(0, torch.zeros(1), torch.ones(1))
    for number, weights in enumerate(([1.0], [0.5, 0.5])):
        state = with_mean(2, 1.0, state, State(number + 1, torch.zeros(1), torch.tensor(weights), {}, state.vectors))
    assert (mean_of(state) or ())[1].tolist() == [0.75, 0.25]


def test_statistics_of_batch_norm_are_refused() -> None:
    with pytest.raises(ValueError, match=r"average_last=0.5 with statistics='averaged'.*leave average_last out"):
        Schedule(rounds=2, local_steps=1, average_last=0.5, statistics="averaged")
