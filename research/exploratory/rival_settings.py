"""The settings of :mod:`rivals`: clients that train, clients that test, and examples for tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import wafl
from wafl.attacks import Attack

ANGLES, UNSEEN = (0.0, 15.0, 30.0, 45.0), 60.0
Pair = tuple[wafl.Federation, wafl.Federation]


@dataclass(frozen=True)
class Setting:
    """A data set and the task of a method there.

    Args:
        columns: the names of its results in the table; with an attack, without it and under it.
        make: a function of the seed that returns the clients that train, and the clients whose test examples count.
        rounds: the rounds of training.
        rate: the learning rate of the first trial.
        held_out: the data that judge trials: training examples of all clients, or some of the clients.
        share: the share that is held out.
        attack: the attack on the test examples and, in half of its value, on the data that judge trials.
    """

    columns: tuple[str, ...]
    make: Callable[[int], Pair]
    rounds: int
    rate: float
    held_out: Literal["examples", "clients"] = "clients"
    share: float = 0.25
    attack: Attack | None = None


def rotated(seed: int) -> Pair:
    """Return digits that each client sees at one angle, and the test examples of all clients at another."""
    clients = wafl.load_dataset("digits").partition(num_clients=len(ANGLES), iid=True, preprocess="unit", seed=seed)

    def at(angles: Sequence[float]) -> wafl.Federation:
        parts: list[Any] = []
        for client, angle in enumerate(angles):
            turn = wafl.shifts.rotation(severity=angle / 90.0).within(clients.bounds)
            (x, y), (x_test, y_test) = clients.train.of(client), clients.test.of(client)
            parts.append((turn.apply(x).numpy(), y.numpy(), turn.apply(x_test).numpy(), y_test.numpy()))
        return wafl.Federation.from_arrays(parts, bounds=clients.bounds, num_classes=10)

    return at(ANGLES), at([UNSEEN] * len(ANGLES))


def people(name: str) -> Callable[[int], Pair]:
    """Return a function that holds out a third of the people."""
    return lambda seed: wafl.load_dataset(name).partition(seed=seed).hold_out(1 / 3, seed=seed)


def skewed(seed: int) -> Pair:
    """Return digits with three labels per client; every client is tested on its own examples."""
    clients = wafl.load_dataset("digits").partition(num_clients=10, labels_per_client=3, preprocess="unit", seed=seed)
    return clients, clients


def domains(folder: Path) -> Callable[[int], Pair]:
    """Return a function that makes two domains as clients, and a third as the target."""

    def make(seed: int) -> Pair:
        clients = wafl.domains(["mnist", "svhn"], "usps", data_dir=folder, size=14, limit=500)
        return clients.clients, clients.target

    return make


def settings(data_dir: Path) -> dict[str, Setting]:
    """Return all settings, by name."""
    return {
        "rotated": Setting(("digits at 60 degrees",), rotated, 20, 0.1),
        "vowels": Setting(("vowels, new speakers",), people("peterson-barney"), 60, 2.0),
        "kinds": Setting(("vowels, a new kind of speaker",), people("peterson-kinds"), 40, 0.3, "examples"),
        "smartwatch": Setting(("smartwatch, new subjects",), people("smartwatch"), 40, 0.3),
        "skewed": Setting(
            ("label skew", "label skew, attacked"), skewed, 20, 0.1, share=0.2, attack=wafl.PGD(epsilon=0.1)
        ),
        "domains": Setting(("MNIST, SVHN to USPS",), domains(data_dir), 20, 0.02, "examples"),
    }
