"""The data sets of the leaderboard: who trains, who is unseen, and who is only tuned on, split by split."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from wafl.attacks import Attack
from wafl.base.random import Purpose, choose
from wafl.data import load_dataset
from wafl.data.federation import Federation
from wafl.data.named.cache import data_folder
from wafl.lab import domains
from wafl.shifts import affine, blur, gaussian_noise, occlusion, rotation, translation

UNSEEN, TUNERS = 0.2, 0.3
"""The share of the clients that a split leaves out, and the share that methods are tuned on and no split leaves out."""
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
"""What images are disturbed by."""
DISTURBANCES: dict[str, Attack] = {
    "noise": gaussian_noise(severity=0.3),
    "offset": affine(severity=1.0, contrast=0.0, brightness=0.3, linear=0.0),
    "mixing": affine(severity=1.0, contrast=0.0, brightness=0.0, linear=0.3),
}
"""What measurements are disturbed by, in standard deviations of a feature."""


@dataclass(frozen=True)
class NaturalData:
    """A data set of the leaderboard: its name in the table, what a client is, and the data sets that it needs.

    ``split`` gives, by number, the clients that train and those that never do; ``tuners`` gives those that methods are
    tuned on, none of whom is unseen in any split. Examples that are images are attacked too. ``cohort`` is how many
    clients there are per round; None asks all.
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
        """The first data set that it needs and that is not here."""
        return domains.missing(self.needs, data_folder())

    @property
    def shifts(self) -> dict[str, Attack]:
        """The disturbances that it is tested under, by name."""
        return CORRUPTIONS if self.images else DISTURBANCES


def _people(name: str, what: str, *, images: bool = False, cohort: int | None = None) -> NaturalData:
    """A data set of natural clients: in every split, some of those who are not tuned on are unseen."""

    @cache
    def everyone() -> Federation:
        return load_dataset(name).partition(by_group=True)

    @cache
    def pool() -> list[int]:
        """The clients that no method is tuned on."""
        total = everyone().num_clients
        tuning = choose(1000, Purpose.UNSEEN, total, max(3, round(TUNERS * total)))
        return [client for client in range(total) if client not in tuning]

    def split(number: int) -> Split:
        count = max(2, round(UNSEEN * everyone().num_clients))
        return everyone().set_apart([pool()[place] for place in choose(number, Purpose.UNSEEN, len(pool()), count)])

    def tuners() -> Federation:
        return everyone().set_apart(pool())[0]

    return NaturalData(name, what, (name,), split, tuners, images, cohort)


def _kinds(number: int) -> Split:
    """Men and women, and unseen children: with three clients, splits differ in the seed of the training alone."""
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
        """The sources and the target: as there is one target, splits differ in the seed of the training alone."""
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
