"""Read the experiments: one TOML file each, with both protocols, all data sets and all scales.

A file is an experiment file of ``wafl run``, with methods and tests by name. A section with the name of a part (a data
set), a protocol or a scale has the differences there, and may contain such sections::

    [methods.wafl]
    method = "WAFL"
    [fair.methods.wafl]
    learning_rate = 0.1
    [mnist.fair.data]
    preprocess = "unit"

Files do not change once they have numbers. What a scale changes later is in ``experiments/scales/SCALE.toml``, by file.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

from research.catalog import PAPER
from research.old_names import FIGURES, current
from wafl.base.errors import ConfigError, did_you_mean
from wafl.config.experiment import Experiment
from wafl.config.read import parse_experiment
from wafl.studies.folder import to_toml
from wafl.train.embedded import find_device

Protocol = Literal["paper", "fair"]
Scale = Literal["smoke", "small", "full"]
PROTOCOLS, SCALES = get_args(Protocol), get_args(Scale)
SCALED = frozenset(SCALES)
ABOUT = ("title", "figure", "parts", "tests", "at_rounds", "judged")
"""The keys about the use of the runs; all others belong to an experiment file."""

FILES = {each.name: Path(each.file or "").stem for each in PAPER}
"""The file of each of the paper's figures and tables."""

UNSET = "unset"
"""The value that removes a key."""


@dataclass(frozen=True)
class Part:
    """One data set (``part``) of the experiment ``name``, under one protocol, at one scale.

    ``figure`` is the kind of drawing, a key of ``FIGURES`` in ``draw.py``. ``tests`` are the tests of the trained
    models, by name: an attack as in an experiment file, and ``attacked``. ``judged`` is the change of the held-out
    examples that judge trials, a key of ``JUDGED`` in ``reproduce.py``; None changes nothing. ``content`` is the file's
    full content about this part, which identifies saved numbers.
    """

    name: str
    part: str
    protocol: Protocol
    scale: Scale
    title: str
    figure: str
    experiment: Experiment
    tests: dict[str, dict[str, Any]]
    judged: str | None
    content: dict[str, Any]

    @property
    def number(self) -> str:
        """The name in commands: the paper's number if it has one."""
        return FIGURES.get(self.name, self.name)

    @property
    def label(self) -> str:
        """The name of the part's files; only the full scale has no suffix."""
        base = f"{self.name}-{self.part}-{self.protocol}"
        return base if self.scale == "full" else f"{base}-{self.scale}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle an experiment as text, because the classes of its methods cannot be found by name."""
        others = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "experiment"}
        return _with_experiment, (others, to_toml(self.experiment))

    def on(self, device: str) -> Self:
        """Return the part tuned, trained and tested on this device; its numbers count as the same."""
        return replace(self, experiment=self.experiment.model_copy(update={"device": str(find_device(device))}))


def _with_experiment(others: dict[str, Any], text: str) -> Part:
    return Part(**others, experiment=parse_experiment(tomllib.loads(text), others["name"]))


def folder() -> Path:
    """Return the folder of the experiment files."""
    return Path(__file__).parents[2] / "experiments"


def names() -> list[str]:
    """Return the names of the figures and tables: the paper's numbers, then ours, which are called like their files."""
    return [*FILES, *sorted(path.stem for path in folder().glob("*.toml") if path.stem not in FILES.values())]


def read(name: str, protocol: Protocol, scale: Scale) -> list[Part]:
    """Return the parts of a figure or table, under a protocol at a scale, one per data set.

    Args:
        name: a paper's number, such as ``figure-4``, or the name of a file.
        protocol: whose settings.
        scale: how much is trained.
    """
    file_name = FILES.get(name, name)
    if file_name not in {FILES.get(each, each) for each in names()}:
        hint = did_you_mean(name, [*names(), *FILES.values()]) or f": there are {', '.join(names())}"
        raise ConfigError(f"unknown experiment {name!r}{hint}")
    for what, value, known in (("protocol", protocol, PROTOCOLS), ("scale", scale, SCALES)):
        if value not in known:
            raise ConfigError(f"{what} = {value!r} must be one of {', '.join(known)}")
    file = tomllib.loads((folder() / f"{file_name}.toml").read_text(encoding="utf-8"))
    later = folder() / "scales" / f"{scale}.toml"
    changes = tomllib.loads(later.read_text(encoding="utf-8")).get(file_name, {}) if later.is_file() else {}
    return [_part(file_name, part, protocol, scale, file, changes) for part in file["parts"]]


def _part(
    name: str, part: str, protocol: Protocol, scale: Scale, file: Mapping[str, Any], changes: Mapping[str, Any]
) -> Part:
    others, chosen = {*file["parts"], *PROTOCOLS, *SCALES}, (part, protocol, scale)
    content = _pruned(_merged(_resolved(file, chosen, others), _resolved(changes, chosen, others)))
    about = {key: content.get(key) for key in ABOUT}
    rest = current({key: value for key, value in content.items() if key not in ABOUT})
    rest["name"] = name
    methods = {label: {"name": label, **table} for label, table in rest["methods"].items() if table}
    rest["methods"] = [each for table in methods.values() for each in _at_rounds(table, about["at_rounds"])]
    experiment = parse_experiment(rest, f"{name}.toml ({part}, {protocol}, {scale})")
    tests = {label: dict(test) for label, test in (about["tests"] or {}).items() if test}
    head = content["title"], content["figure"]
    return Part(name, part, protocol, scale, *head, experiment, tests, about["judged"], content)


def _at_rounds(table: dict[str, Any], rounds: list[int] | None) -> list[dict[str, Any]]:
    """Return the method after several numbers of rounds: each run is a beginning of the longest."""
    if rounds is None:
        return [table]
    return [{**table, "name": f"{table['name']}-round-{count}", "rounds": count} for count in rounds]


def _resolved(table: Mapping[str, Any], chosen: tuple[str, ...], others: set[str]) -> dict[str, Any]:
    """Return a table, changed by its chosen sections, the deepest last, and a scale's sections after all others."""
    result: dict[str, Any] = {}
    layers = sorted(_layers(table, chosen, others), key=lambda each: (not SCALED.isdisjoint(each[0]), len(each[0])))
    for _, layer in layers:
        result = _merged(result, layer)
    return result


def _layers(
    table: Mapping[str, Any], chosen: tuple[str, ...], others: set[str], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the content of a table, and of each chosen section in it, with their paths."""
    yield path, {key: value for key, value in table.items() if key not in others}
    for name in chosen:
        if name in table:
            yield from _layers(table[name], chosen, others, (*path, name))


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables: nested tables are joined key by key, and other values of ``above`` replace those ``below``."""
    result = dict(below)
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(old := result.get(key), dict):
            result[key] = _merged(cast("dict[str, Any]", old), cast("dict[str, Any]", value))
        else:
            result[key] = value
    return result


def _pruned(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table without the keys that are unset."""
    return {
        key: _pruned(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for key, value in table.items()
        if value != UNSET
    }
