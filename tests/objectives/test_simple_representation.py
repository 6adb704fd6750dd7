"""FedSR against autograd straight from the paper's equations, in float64."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call
from torch.nn.functional import cross_entropy, softplus

import wafl
from tests.oracles.reference import BATCH, order
from wafl.base.random import Key, Purpose, normal

CLASSES, FEATURES, SIZES = 3, 4, (5, 7)
L2, CMI, NOISE, RATE, STEPS = 0.05, 0.2, 0.3, 0.4, 3


def network() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()


def linear() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(FEATURES, CLASSES)).double()


def convolution() -> nn.Sequential:
    torch.manual_seed(2)
    layers = (nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, CLASSES))
    return nn.Sequential(*layers).double()


@pytest.fixture(scope="module")
def arrays() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(size, FEATURES, generator=generator).double(), torch.arange(size) % CLASSES) for size in SIZES]


@pytest.fixture(scope="module")
def clients(arrays: list[tuple[Tensor, Tensor]]) -> wafl.Federation:
    return wafl.Federation.from_arrays(arrays, test_fraction=0)


def by_the_paper(
    model: nn.Sequential, layer: int | None, arrays: list[tuple[Tensor, Tensor]], rounds: int
) -> tuple[dict[str, Tensor], list[float]]:
    """FedAvg by examples, full batches: all that is learned descends one objective; r stays with its client."""
    params = {name: value.detach() for name, value in model.named_parameters()}
    references: list[tuple[Tensor, Tensor] | None] = [None] * len(arrays)
    losses = []
    parts = list(model.named_children())
    cut = len(parts) if layer is None else layer + 1
    encoder, head = (nn.Sequential(OrderedDict(some)) for some in (parts[:cut], parts[cut:]))
    for number in range(rounds):
        ends, first = [], 0.0
        for client, (examples, labels) in enumerate(arrays):
            local = {name: value.clone().requires_grad_() for name, value in params.items()}
            reference = references[client]
            for step in range(STEPS):
                rows = order(5, BATCH, number, client, step, len(labels))
                x, y = examples[rows], labels[rows]
                hidden = functional_call(encoder, {name: local[name] for name, _ in encoder.named_parameters()}, (x,))
                mean = hidden.flatten(1)
                if reference is None:
                    reference = tuple(start(CLASSES, mean.shape[1]).double() for start in (torch.zeros, torch.ones))
                center, raw = (part.detach().requires_grad_() for part in reference)
                draws = normal(Key.of(5, number, client, step), Purpose.START, mean.numel()).view_as(mean)
                z = mean + NOISE * draws
                outputs = functional_call(
                    head, {name: local[name] for name, _ in head.named_parameters()}, (z.view_as(hidden),)
                )
                information = kl_divergence(Normal(mean, NOISE), Normal(center[y], softplus(raw)[y])).sum(1)
                lengths = mean.square().sum(1) + mean.shape[1] * NOISE**2
                objective = (cross_entropy(outputs, y, reduction="none") + L2 * lengths + CMI * information).mean()
                first += float(objective.detach()) * len(y) / sum(SIZES) if step == 0 else 0.0
                learned = [*local.values(), center, raw]
                slopes = torch.autograd.grad(objective, learned)
                *moved, center, raw = (
                    (value - RATE * slope).detach() for value, slope in zip(learned, slopes, strict=True)
                )
                local = {name: value.requires_grad_() for name, value in zip(local, moved, strict=True)}
                reference = (center, raw)
            references[client] = reference
            ends.append(local)
        losses.append(first)
        sizes = torch.tensor(SIZES, dtype=torch.float64)
        params = {
            name: torch.tensordot(sizes, torch.stack([end[name].detach() for end in ends]), 1) / sizes.sum()
            for name in params
        }
    return params, losses


@pytest.mark.parametrize(
    ("make", "layer"),
    [(network, 1), (network, None), (linear, None), (convolution, 2)],
    ids=["layer", "outputs", "linear", "convolution"],
)
def test_two_rounds_are_those_of_the_papers_equations(
    make: Callable[[], nn.Sequential], layer: int | None, arrays: list[tuple[Tensor, Tensor]], clients: wafl.Federation
) -> None:
    model = make()
    method = wafl.FedSR(l2=L2, cmi=CMI, noise=NOISE, space=None if layer is None else str(layer))
    options: dict[str, Any] = {"rounds": 2, "local_steps": STEPS, "batch_size": None, "learning_rate": RATE, "seed": 5}
    run = wafl.fit(model, clients, method, init=dict(model.named_parameters()), **options)
    wanted, losses = by_the_paper(model, layer, arrays, rounds=2)
    for name, value in wanted.items():
        torch.testing.assert_close(run.params[name], value, rtol=0, atol=1e-8)
    assert [record.loss for record in run.history] == pytest.approx(losses, rel=0, abs=1e-8)
    plain = wafl.fit(model, clients, wafl.FedAvg(), init=dict(model.named_parameters()), **options)
    assert any(float((plain.params[name] - value).abs().max()) > 1e-2 for name, value in wanted.items())


def test_a_frozen_encoder_keeps_the_noise_at_the_named_layer(clients: wafl.Federation) -> None:
    """Its features are not computed once and trained upon: they are not where a ball is."""
    model = network()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    options: dict[str, Any] = {"rounds": 1, "local_steps": 1, "batch_size": None, "learning_rate": 1.0, "seed": 5}
    run = wafl.fit(model, clients, wafl.FedSR(l2=1.0, cmi=1.0, noise=0.3, space="1"), **options)
    quiet = wafl.fit(model, clients, wafl.FedSR(l2=0.0, cmi=0.0, noise=0.3, space="1"), **options)
    assert torch.equal(run.params["2.weight"], quiet.params["2.weight"]), "no price reaches what comes after the layer"


def test_what_it_cannot_do_is_refused_before_any_work(clients: wafl.Federation) -> None:
    with pytest.raises(ValueError, match=r"space='9' is not a layer of the model, which has: 0, 1, 2"):
        wafl.fit(network(), clients, wafl.FedSR(space="9"), rounds=1, local_steps=1)
    targets = wafl.Federation.from_arrays([([[0.0], [1.0]], [0.0, 1.0])], test_fraction=0)
    with pytest.raises(ValueError, match="FedSR has a reference for each class: it needs loss='cross_entropy'"):
        wafl.fit(nn.Linear(1, 1), targets, wafl.FedSR(), rounds=1, local_steps=1, loss="squared_error")
    with pytest.raises(ValueError, match="noise=0"):
        wafl.FedSR(noise=0.0)
