"""Certificates of balls at a layer or with a cost matrix: of the head on features, of ``model(A u)`` at ``A^-1 x``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from wafl.theory import Certificates


def clients_and_net() -> tuple[wafl.Federation, nn.Sequential]:
    generator = torch.Generator().manual_seed(2)
    parts = []
    for client in range(3):
        x = torch.randn(12, 2, 2, generator=generator, dtype=torch.float64) + client
        parts.append((x.numpy(), torch.randint(3, (12,), generator=generator).numpy()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    return wafl.Federation.from_arrays(parts, test_fraction=0.25, num_classes=3), net


def values(certificates: Certificates) -> list[tuple[float, float, float]]:
    return [(row.value, row.simple, row.achieved or 0.0) for row in certificates.rows]


def assert_same(one: Certificates, other: Certificates) -> None:
    for mine, theirs in zip(values(one), values(other), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("part", ["train", "test"])
def test_at_a_layer_it_is_the_certificate_of_the_head_on_features_and_proven(part: Any) -> None:
    clients, net = clients_and_net()
    certificates = wafl.certify(net, clients, radii=[0.1, 0.5], split=part, space="2")
    features = [
        (net[:3](train[0].double()).detach().numpy(), train[1].numpy(), net[:3](test[0].double()).detach().numpy(),
         test[1].numpy())
        for train, test in ((clients.train.of(i), clients.test.of(i)) for i in range(3))
    ]  # fmt: skip
    by_hand = wafl.Federation.from_arrays([tuple(each) for each in features], num_classes=3)
    assert_same(certificates, wafl.certify(net[3], by_hand, radii=[0.1, 0.5], split=part))
    assert certificates.proven, "a linear head"
    assert not wafl.certify(net, clients, radii=[0.1], split=part).L_zz.proven, "a network with ReLU has none"
    assert "output of layer '2'" in certificates.unit
    assert all(row.achieved is not None and row.achieved <= row.best + 1e-9 for row in certificates.rows)


@pytest.mark.parametrize("linear", [True, False])
def test_with_a_shape_it_is_the_certificate_of_the_stretched_model(linear: bool) -> None:
    clients, net = clients_and_net()
    layers = [nn.Linear(4, 3).double()] if linear else [nn.Tanh(), net[1], nn.Tanh(), net[3]]
    model = nn.Sequential(nn.Flatten(), *layers)
    matrix = torch.eye(4, dtype=torch.float64) + 0.3 * torch.arange(16.0, dtype=torch.float64).view(4, 4).sin()
    result = wafl.certify(model, clients, radii=[0.1, 0.4], cost_matrix=matrix.numpy())

    first = nn.Linear(4, 4, bias=False).double()
    first.weight = nn.Parameter(matrix.clone())
    stretched = nn.Sequential(first, *model[1:])
    if linear:
        stretched = nn.Linear(4, 3).double()
        stretched.weight = nn.Parameter(model[1].weight.detach() @ matrix)
        stretched.bias = nn.Parameter(model[1].bias.detach().clone())
    parts = [clients.train.of(i) for i in range(3)]
    pairs = [(torch.linalg.solve(matrix, x.double().flatten(1).T).T.numpy(), y.numpy()) for x, y in parts]
    by_hand = wafl.Federation.from_arrays(pairs, test_fraction=0.0, num_classes=3)
    wanted = wafl.certify(stretched, by_hand, radii=[0.1, 0.4])
    assert_same(result, wanted)
    assert result.proven == wanted.proven is True


def test_a_run_brings_its_loss_and_weights_and_clients_their_shape() -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=4, seed=0)
    method = wafl.WAFL(gamma=1.0, cost_matrix="clients", client_weights=wafl.weights.fixed([0.4, 0.3, 0.3, 0.0]))
    run = wafl.fit(wafl.models.mlr(clients), clients, method, rounds=2, local_epochs=1)
    result = wafl.certify(run, clients, radii=[0.0, 0.5], cost_matrix="clients", achieved=False)
    plain = wafl.certify(run, clients, radii=[0.0], achieved=False)
    assert result.loss == pytest.approx(plain.loss, rel=1e-6)
    assert result.proven
    assert "over the cost matrix of the ball" in result.unit


class Words(nn.Module):
    """The mean of the words' vectors without padding, which the layers after the embedding look for in the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 3), nn.Linear(3, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        elsewhere = (words > 0)[..., None]
        return self.head((self.embedding(words) * elsewhere).sum(1) / elsewhere.sum(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cells, self.head = nn.Embedding(10, 3), nn.GRU(3, 2, batch_first=True), nn.Linear(2, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.embedding(words))[0][:, -1])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("make", "layer", "proven"),
    [
        (Words, "embedding", False),
        (Recurrent, "embedding", False),
        (lambda: nn.Sequential(nn.EmbeddingBag(10, 3), nn.Linear(3, 2)), "0", True),
    ],
)
def test_at_the_vectors_of_words(make: Any, layer: str, proven: bool) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
        words, y = torch.randint(1, 10, (6, 4)), torch.arange(6) % 2
    if isinstance(model, Words):
        words[:3, 2:] = 0
    clients = wafl.Federation.from_arrays([(words, y)], test_fraction=0.0, num_classes=2)
    certificates = wafl.certify(model, clients, radii=[0.0, 0.1], space=layer)
    at_rest = float(nn.functional.cross_entropy(model.double()(words), y).detach())
    assert certificates[0].value == pytest.approx(at_rest, rel=1e-6)
    assert certificates[1].value > at_rest
    assert certificates.proven == proven


class Branched(nn.Module):
    """The network of :func:`clients_and_net`, whose layers are no plain sequence."""

    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.features, self.head = net[:3], net[3]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_with_a_shape_at_a_layer_only_its_outputs_move_whatever_the_model_is() -> None:
    clients, net = clients_and_net()
    options: dict[str, Any] = {"radii": [0.3], "achieved": False}
    for shape in ([1.0, 2.0, 0.5, 1.5, 1.0], "clients"):
        plain = wafl.certify(net, clients, space="2", cost_matrix=shape, **options)
        other = wafl.certify(Branched(net), clients, space="features", cost_matrix=shape, **options)
        assert plain.proven
        assert other[0].value == pytest.approx(plain[0].value, rel=1e-2), "an estimate of the same number"
    train = clients.train
    owner = torch.repeat_interleave(torch.arange(3), train.num_examples)
    matrix = wafl.objectives.client_cost_matrix(net[:3](train.x.double()).detach(), train.y, owner)
    assert_same(plain, wafl.certify(net, clients, space="2", cost_matrix=matrix, **options))
    assert "from the others' at layer 'features' of this model" in other.unit


def test_an_unknown_layer_is_named() -> None:
    clients, net = clients_and_net()
    with pytest.raises(ValueError, match="space='7' is not a layer of the model, which has: 0, 1, 2, 3"):
        wafl.certify(net, clients, radii=[0.1], space="7")


def test_with_a_shape_a_first_layer_that_is_used_twice_stays_what_it_is() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(3, 2)).double()
    pair = torch.randn(8, 3, dtype=torch.float64), torch.arange(8) % 2
    clients = wafl.Federation.from_arrays([pair], test_fraction=0.0, num_classes=2)
    result = wafl.certify(model, clients, radii=[0.1], cost_matrix=[5.0, 1.0, 0.2], achieved=False)
    assert result.loss == pytest.approx(float(nn.functional.cross_entropy(model(pair[0]), pair[1]).detach()), rel=1e-9)


def test_at_a_layer_a_plain_regression_has_the_certificate_of_its_head_on_features():
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ELU(), nn.Linear(4, 1)).double()
    x, y = torch.from_numpy(rng.normal(size=(3, 8, 3))), rng.normal(size=(3, 8, 1))
    features = model[:2](x).detach().numpy()
    here, there = (
        wafl.Federation.from_arrays(list(zip(inputs, y, strict=True)), test_fraction=0.0)
        for inputs in (x.numpy(), features)
    )
    ours = wafl.certify(model, here, radii=[0.3], space="1", loss="squared_error")
    theirs = wafl.certify(model[2], there, radii=[0.3], loss="squared_error")
    assert ours.proven
    assert ours[0].certified == pytest.approx(theirs[0].certified, rel=1e-12)
