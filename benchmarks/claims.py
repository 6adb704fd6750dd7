"""Measure the speed claims of the pages again: one table, and a failure if a claim has become a third worse.

    make benchmark          (python -m benchmarks.claims [--smallest] [--only radius])

Every figure is a ratio, and a smaller one is better: of two times that are measured in turns, or of the memory of the
tensors that are alive at a peak to what the method needs. The table has the claim of a page, the figure of the last
commit that changed this file for this kind of processor (x86 or ARM), the new figure, and its processor time.
``--only`` measures the claims with this text. With ``--smallest``, no claim fails.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

import wafl
from benchmarks import memory, million, networks, options, speed
from wafl.config.demo import CHOSEN

WORSE = 4.0 / 3.0
UNKNOWN = math.inf
"""The figure of a claim that has not been measured on this kind of processor, and cannot be worse."""


@dataclass(frozen=True)
class Claim:
    """A sentence of a page, its last figures on x86 and ARM, and how it is measured: on full size, or the smallest."""

    sentence: str
    figures: tuple[float, float]
    measure: Callable[[bool], float]

    @property
    def last(self) -> float:
        """The figure of this kind of processor."""
        return self.figures[platform.machine() in ("aarch64", "arm64")]


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="measure the claims with this text")
    given = options.read(parser, argv)
    table, broken = Table("claim: what comes before 'to' over what comes after", "last", "now", "s", ""), list[str]()
    claims = [claim for claim in CLAIMS if given.only.lower() in claim.sentence.lower()]
    if not claims:
        parser.error(f"--only {given.only!r} is in none of these: {'; '.join(claim.sentence for claim in CLAIMS)}")
    for claim in claims:
        began = processor()
        now, spent = claim.measure(given.smallest), processor() - began
        holds = given.smallest or now <= WORSE * claim.last
        broken += [] if holds else [claim.sentence]
        verdict = "" if holds else "worse by more than a third"
        table.add_row(claim.sentence, f"{claim.last:.3g}", f"{now:.3g}", f"{spent:.0f}", verdict)
    Console(width=120).print(table)
    if broken:
        raise SystemExit(f"{len(broken)} of {len(claims)} claims are worse by more than a third: {'; '.join(broken)}")


def processor() -> float:
    """Return the processor seconds of this process and of its child processes."""
    return sum(os.times()[:4])


def to_plain(method: wafl.Method) -> Callable[[bool], float]:
    def measure(smallest: bool) -> float:
        clients = speed.make_clients(speed.COHORT if smallest else 100, 70 if smallest else 525)
        ours, theirs, _ = speed.duel(clients, method, 1 if smallest else 5, 1 if smallest else 3)
        return ours / theirs

    return measure


def sweep(smallest: bool) -> float:
    gammas = [0.5 * 1.4**power for power in range(2 if smallest else 16)]
    clients = speed.make_clients(speed.COHORT if smallest else 100, 70 if smallest else 525)
    singles, swept = speed.sweep_against_singles(clients, gammas, 1, 1)
    return swept / singles


def demo(smallest: bool) -> float:
    """Time WAFL and FedAvg with the settings of ``wafl run``, three seeds at once, and return the ratio."""
    clients = wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=0)
    model, taken = wafl.models.mlr(clients), dict[str, list[float]]()
    schedule = {"rounds": 1 if smallest else 100, "local_steps": 1, "batch_size": 32, "learning_rate": 1.0}
    method = wafl.WAFL(**CHOSEN["WAFL"])
    for _ in range(1 if smallest else 3):
        for name, trained, more in (("WAFL", method, {}), ("FedAvg", wafl.FedAvg(), CHOSEN["FedAvg"])):
            began = time.process_time()
            wafl.sweep(model, clients, trained, {"seed": range(1 if smallest else 3)}, **schedule, **more)
            taken.setdefault(name, []).append(time.process_time() - began)
    return statistics.median(taken["WAFL"]) / statistics.median(taken["FedAvg"])


def boxed(smallest: bool) -> float:
    clients = speed.make_images(speed.COHORT if smallest else 100, 70 if smallest else 525)
    free, within = speed.boxed(clients, 500.0, math.inf, 1, 1 if smallest else 3)
    return within / free


def ball(work: str, name: str) -> Callable[[bool], float]:
    """Time one of the balls of ``benchmarks.speed --part norms``, and return its ratio to FedAvg."""

    def measure(smallest: bool) -> float:
        model, clients, rate = speed.WORKS[work]()
        rounds, repeats = (1, 1) if smallest else (30, 3)
        plain, robust = speed.to_fedavg(model, clients, speed.NORMS[work][name], rate, rounds, repeats)
        return robust / plain

    return measure


def workers(smallest: bool) -> float:
    clients = networks.make_clients([8 if smallest else 300] * 10, (1, 8, 8) if smallest else (1, 28, 28))
    one, two = networks.shared(clients, wafl.FedAvg(), 1 if smallest else 3, 1 if smallest else 3)
    return two / one


def many(method: wafl.Method) -> Callable[[bool], float]:
    def measure(smallest: bool) -> float:
        sizes = (60, 600) if smallest else (100, 100_000)
        x, y = million.make(max(sizes))
        few, most = (million.rounds_of(million.pack(x, y, size), method, 2 if smallest else 40) for size in sizes)
        return statistics.quantiles(most, n=4)[0] / statistics.quantiles(few, n=4)[0]

    return measure


def convolutions(smallest: bool) -> float:
    clients = networks.make_clients([8] * 2 if smallest else [64] * 10, (3, 8, 8) if smallest else (3, 32, 32))
    mine, theirs, _ = networks.duel(
        wafl.models.cnn(clients), clients, wafl.FedAvg(), 1 if smallest else 2, 1 if smallest else 3
    )
    return mine / theirs


def alive_of_a_million(smallest: bool) -> float:
    count = million.COHORT if smallest else 1_000_000
    clients = million.pack(*million.make(count), count)
    return memory.alive_to_need(wafl.models.mlr(clients), clients, wafl.FedAvg(), million.COHORT)


def alive_in_pairs(smallest: bool) -> float:
    count, model = 4 if smallest else 100, networks.make_model(hidden=8 if smallest else 512)
    return memory.alive_to_need(model, speed.make_clients(count, 4), wafl.SCAFFOLD(), count, chunk=2)


CLAIMS = [
    Claim("FedAvg of the default CNN by two threads to one", (0.54, UNKNOWN), workers),
    Claim("FedAvg of the default CNN to plain PyTorch", (1.22, UNKNOWN), convolutions),
    Claim("FedAvg of a linear model to plain PyTorch", (0.28, 0.233), to_plain(wafl.FedAvg())),
    Claim(
        "WAFL with 40 inner steps to plain PyTorch",
        (0.014, 0.0147),
        to_plain(wafl.WAFL(gamma=speed.GAMMA, steps=speed.STEPS, tolerance=0)),
    ),
    Claim("a sweep of 16 gammas to 16 runs", (0.4, 0.62), sweep),
    Claim("the demo's WAFL to its FedAvg", (7.0, UNKNOWN), demo),
    Claim("moves in l_inf within [0, 1] to moves without bounds", (1.65, 1.53), boxed),
    Claim(
        "WAFL in l_inf with a radius to FedAvg, linear", (6.1, UNKNOWN), ball("linear, digits", "l_inf, radius 0.12")
    ),
    Claim("WAFL in l1 with a radius to FedAvg, linear", (8.1, UNKNOWN), ball("linear, digits", "l1, radius 1")),
    Claim("WAFL in l2 to FedAvg, 6-32-2 network", (5.2, UNKNOWN), ball("network, 6-32-2", "l2, gamma 5")),
    Claim("a round of FedAvg with 100,000 clients to one with 100", (1.05, 1.08), many(wafl.FedAvg())),
    Claim("a round of DRFA with 100,000 clients to one with 100", (1.13, 1.09), many(wafl.DRFA())),
    Claim("memory of FedAvg with a million clients to its need", (1.006, 1.006), alive_of_a_million),
    Claim("memory of SCAFFOLD, 100 clients in pairs, to its need", (1.16, 1.16), alive_in_pairs),
]


if __name__ == "__main__":
    main()
