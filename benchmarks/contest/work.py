"""The work that contestants share: made once, with the cohorts and batches that wafl draws."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.contest.shared.handed import Work
from benchmarks.contest.shared.nets import resnet18
from wafl.base.random import Key
from wafl.data.federation import Federation
from wafl.models import cnn, mlr
from wafl.parts.client_weights import Round, uniform_cohort
from wafl.parts.schedule import LocalWork
from wafl.train.batches import draw_batches

CLASSES, BATCH, STEPS, GAMMA, SEED = 10, 64, 40, 0.5, 0
SHAPES = {"mlr": (784,), "cnn": (3, 32, 32), "resnet": (3, 32, 32)}
MODELS: dict[str, Callable[[Federation], nn.Module]] = {
    "mlr": mlr,
    "cnn": cnn,
    "resnet": lambda _: _residual(),
}
RATES = {"mlr": 0.01, "cnn": 0.05, "resnet": 0.05}
KINDS: dict[str, tuple[str, float | None]] = {
    "fedavg": ("mlr", None), "wafl": ("mlr", GAMMA), "cnn": ("cnn", None), "resnet": ("resnet", None),
}  # fmt: skip
"""The model and the gamma of each kind of work; FedAvg has no gamma."""


@dataclass(frozen=True)
class Size:
    """How large the work is."""

    clients: int = 100
    examples: int = 525
    cohort: int = 10
    rounds: int = 10
    epochs: int = 2


def make_work(kind: str, size: Size, device: str = "cpu") -> Work:
    """Return the work of a kind: Gaussian classes that can be learned, with another shift at each client."""
    model_kind, gamma = KINDS[kind]
    clients = _federation(*_examples(SHAPES[model_kind], size))
    sizes = tuple([size.examples] * size.clients)
    rounds = (Round(number, SEED, size.clients, size.cohort, 1, sizes) for number in range(size.rounds))
    cohorts = [list(uniform_cohort(each)) for each in rounds]
    drawn = [[_batches(number, client, size) for client in cohort] for number, cohort in enumerate(cohorts)]
    lengths = np.array([[[len(rows) for rows in steps] for steps in cohort] for cohort in drawn])
    rows = torch.cat([rows for cohort in drawn for steps in cohort for rows in steps]).numpy()
    about = {
        "kind": kind, "model": model_kind, "gamma": gamma, "steps": STEPS, "learning_rate": RATES[model_kind],
        "epochs": size.epochs, "device": device,
    }  # fmt: skip
    params = {name: value.numpy().copy() for name, value in MODELS[model_kind](clients).state_dict().items()}
    pack = clients.train
    return Work(
        pack.x.numpy(), pack.y.numpy(), pack.offsets.numpy(), np.array(cohorts), rows,
        lengths.cumsum().reshape(lengths.shape), about, params,
    )  # fmt: skip


def opened(work: Work) -> tuple[Federation, nn.Module]:
    """Return the clients of a work, and its model with the parameters to start from."""
    clients = _federation(*(torch.from_numpy(part) for part in (work.x, work.y, work.offsets)))
    model = MODELS[work.about["model"]](clients)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in work.params.items()})
    return clients, model


def _federation(x: Tensor, y: Tensor, offsets: Tensor) -> Federation:
    return Federation.from_offsets(x, y, offsets, test_fraction=0, num_classes=CLASSES)


def _examples(shape: tuple[int, ...], size: Size) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    count = size.clients * size.examples
    centers = torch.randn(CLASSES, *shape, generator=generator)
    y = torch.randint(CLASSES, (count,), generator=generator)
    shift = 0.3 * torch.randn(size.clients, *shape, generator=generator)
    x = torch.randn(count, *shape, generator=generator).add_(0.2 * centers[y])
    x.view(size.clients, size.examples, *shape).add_(shift[:, None])
    return x, y, torch.arange(0, count + 1, size.examples)


def _residual() -> nn.Module:
    """ResNet-18, which begins alike in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return resnet18(CLASSES)


def _batches(number: int, client: int, size: Size) -> list[Tensor]:
    """Return the rows of every local step of a client, as wafl draws them."""
    key = Key(*(torch.tensor([value]) for value in (SEED, number, client, 0)))
    drawn = draw_batches(LocalWork(None, size.epochs, BATCH), key, torch.tensor([size.examples]), BATCH)
    return [drawn.index[0, step][drawn.real[0, step]] for step in range(drawn.index.shape[1])]
