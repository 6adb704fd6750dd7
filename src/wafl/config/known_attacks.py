"""The listed attacks and shifts as data that need no torch.

``tools/attacks_page.py`` writes ``attacks.json``, and a test compares it with the lists.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from wafl.base.extras import require
from wafl.base.near import nearest
from wafl.base.options import Option
from wafl.config.known_methods import default_of, options_from_json


class Package(NamedTuple):
    """A package that an attack needs: the module to import, and the extra of wafl-learn that installs it."""

    module: str
    extra: str


PACKAGES = {"autoattack": Package("pyautoattack", extra="autoattack")}
"""The optional package of each attack that needs one, by the attack's name."""


@dataclass(frozen=True)
class KnownAttack:
    """An attack or a shift: its name, a summary, and the options that files and the command can set, the size first.

    ``package`` is None unless the attack needs an optional package.
    """

    name: str
    summary: str
    options: dict[str, Option]
    package: Package | None = None

    @property
    def size(self) -> str:
        return next(iter(self.options))

    def check_package(self) -> None:
        """Raise a ValueError if the attack needs a package that is not installed."""
        if self.package is not None:
            require(self.package.module, extra=self.package.extra, what=f"attack={self.name!r}")


@cache
def known_attacks() -> dict[str, KnownAttack]:
    """Return every listed attack, then every listed shift, by name."""
    listed = json.loads(files("wafl.config").joinpath("attacks.json").read_text(encoding="utf-8"))
    return {
        each["name"]: KnownAttack(
            options=options_from_json(each.pop("options")), package=PACKAGES.get(each["name"]), **each
        )
        for each in listed
    }


def unknown_attack(name: str, known: Iterable[str]) -> str:
    """Return the message about an attack that does not exist: the closest name, and all names."""
    names = list(known)
    near = nearest(name, names)
    hint = "" if near is None else f" (did you mean {near!r}?)"
    return f"unknown attack {name!r}{hint}: use one of {', '.join(names)}"


def options_by_name(
    kinds: Mapping[str, Mapping[str, Option]], first: Iterable[str] = ()
) -> dict[str, dict[str, Option]]:
    """Return, for each option, the kinds that have it with their own declarations; names in ``first`` lead."""
    names = [name for options in kinds.values() for name in options]
    return {
        name: {kind: options[name] for kind, options in kinds.items() if name in options}
        for name in dict.fromkeys((*first, *names))
    }


def purposes(owners: Mapping[str, Option]) -> list[str]:
    """Return the purposes of an option, each text once and after the kinds that have it."""
    texts = dict[str, list[str]]()
    for kind, option in owners.items():
        texts.setdefault(f"{option.doc[:1].lower()}{option.doc[1:]}", []).append(kind)
    return [f"{', '.join(kinds)}: {text}" for text, kinds in texts.items()]


def describe_option(owners: Mapping[str, Option]) -> str:
    """Return the help of an option: its purpose and its default for the kinds that have it, each text once."""
    words, defaults = purposes(owners), dict[str, list[str]]()
    for kind, option in owners.items():
        if option.default is not None:
            defaults.setdefault(default_of(option), []).append(kind)
    if len(defaults) == 1:
        words.append(f"Default: {', '.join(defaults)}.")
    elif defaults:
        each = (f"{value} ({', '.join(kinds)})" for value, kinds in defaults.items())
        words.append(f"Default: {', '.join(each)}.")
    return " ".join(words)
