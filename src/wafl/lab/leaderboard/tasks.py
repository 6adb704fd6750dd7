"""The data sets of the leaderboard: who trains, who is unseen, and who is only tuned on, split by split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from wafl.attacks import Attack
from wafl.base.random import Purpose, choose
from wafl.data import load_dataset
from wafl.data.federation import Federation
from wafl.data.named.cache import data_folder, locate
from wafl.data.named.natural import NATURAL
from wafl.lab import domains
from wafl.shifts import affine, blur, gaussian_noise, occlusion, rotation, translation

UNSEEN, TUNERS = 0.2, 0.3
"""The share of the clients that a split leaves out, and that methods are tuned on, whom no split leaves out."""
TURNS = (0.0, 15.0, 30.0, 45.0, 60.0)
"""The angles of the digits' clients in degrees, in turn; clients with the last are unseen."""

Split = tuple[Federation, Federation]
CORRUPTIONS: dict[str, Attack] = {
    "noise": gaussian_noise(severity=0.2),
    "blur": blur(severity=1.0),
    "contrast": affine(severity=1.0, brightness=0.0, linear=0.0),
    "brightness": affine(severity=1.0, contrast=0.0, linear=0.0),
    "shift": translation(severity=1.0),
    "occlusion": occlusion(severity=0.3),
    "rotation": rotation(severity=20.0 / 90.0),
}
"""Of images."""
DISTURBANCES: dict[str, Attack] = {
    "noise": gaussian_noise(severity=0.3),
    "offset": affine(severity=1.0, contrast=0.0, brightness=0.3, linear=0.0),
    "mixing": affine(severity=1.0, contrast=0.0, brightness=0.0, linear=0.3),
}
"""Of measurements, in standard deviations of a feature."""


@dataclass(frozen=True)
class NaturalData:
    """A data set of the leaderboard.

    Args:
        name: what the table calls it.
        what: what a client is, and who is unseen.
        needs: the data sets that it is made of.
        split: the clients that train and those that never do, by the number of the split.
        tuners: the clients that methods are tuned on; none of them is unseen in any split.
        images: whether its examples are images, which are attacked too.
        cohort: clients per round; None asks all.
    """

    name: str
    what: str
    needs: tuple[str, ...]
    split: Callable[[int], Split]
    tuners: Callable[[], Federation]
    images: bool = False
    cohort: int | None = None

    @property
    def missing(self) -> str | None:
        """The first data set that is not here; nothing is downloaded."""
        for name in self.needs:
            place = data_folder()
            here = NATURAL[name].find(place) if name in NATURAL else name == "digits" or locate(name, place)
            if not here:
                return name
        return None

    @property
    def shifts(self) -> dict[str, Attack]:
        return CORRUPTIONS if self.images else DISTURBANCES


def _people(name: str, what: str, *, images: bool = False, cohort: int | None = None) -> NaturalData:
    """Natural clients: in every split, some of those who are not tuned on are unseen."""

    @cache
    def everyone() -> Federation:
        return load_dataset(name).partition(by_group=True)

    def tuning() -> list[int]:
        total = everyone().num_clients
        return choose(1000, Purpose.UNSEEN, total, max(3, round(TUNERS * total)))

    def split(number: int) -> Split:
        pool = [client for client in range(everyone().num_clients) if client not in tuning()]
        count = max(2, round(UNSEEN * everyone().num_clients))
        return everyone().set_apart([pool[place] for place in choose(number, Purpose.UNSEEN, len(pool), count)])

    def tuners() -> Federation:
        others = [client for client in range(everyone().num_clients) if client not in tuning()]
        return everyone().set_apart(others)[0]

    return NaturalData(name, what, (name,), split, tuners, images, cohort)


def _kinds(number: int) -> Split:
    """Splits differ in the seed of the training alone: there are three clients."""
    everyone = load_dataset("peterson-kinds").partition(by_group=True)
    return everyone.set_apart([everyone.names.index("children")])


def _turned(number: int) -> Split:
    clients = load_dataset("digits").partition(
        20, iid=True, skew=[rotation(severity=angle / 90.0) for angle in TURNS], preprocess="unit", seed=number
    )
    return clients.set_apart([client for client in range(20) if client % len(TURNS) == len(TURNS) - 1])


def _domains(name: str) -> NaturalData:
    sources = domains.TASKS[name]
    what = f"{sources[0]} and {sources[1]}; unseen {sources[2]}"

    def split(number: int) -> Split:
        """Splits differ in the seed of the training alone: there is one target."""
        return domains.task(name).clients, domains.task(name).target

    return NaturalData(name.replace("_", "-"), what, sources, split, lambda: split(0)[0], images=True)


DATA = {
    data.name: data
    for data in (
        _people("smartwatch", "subjects"),
        _people("peterson-barney", "speakers"),
        NaturalData(
            "peterson-kinds", "men and women; unseen children", ("peterson-kinds",), _kinds, lambda: _kinds(0)[0]
        ),
        _people("pols", "speakers"),
        _people("mlbench-vowel", "speakers"),
        _people("hospitals", "hospitals: no shift, only fairness"),
        NaturalData(
            "turned-digits", "four angles; unseen a fifth", ("digits",), _turned, lambda: _turned(100)[0], images=True
        ),
        _people("femnist", "writers", images=True, cohort=10),
        *map(_domains, domains.TASKS),
    )
}
"""The data sets of the leaderboard, by name."""
