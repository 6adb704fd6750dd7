"""An attack or a shift is named in its own file and one list; experiment files, the command and pages follow."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Annotated, Any, ClassVar, get_args

import pytest
from pydantic import ValidationError
from tools.attacks_page import LIST, PAGE, attacks_list, page

from wafl.attacks import ATTACKS, Attack, Settings
from wafl.base.options import NotNegative, Positive, options_of
from wafl.config import experiment
from wafl.config.known import known_attacks
from wafl.config.plan import make_attack
from wafl.shifts import MOVES, SHIFTS


@dataclass(frozen=True)
class Push(Attack):
    """An attack that is not in the list."""

    settings: ClassVar[Settings] = Settings("epsilon", 0.3, ("decay", "norm"))

    epsilon: Annotated[float, NotNegative, "How far."]
    decay: Annotated[float, Positive(), "How fast."] = 2.0
    norm: Annotated[float, "In which norm."] = 1.0

    def move(self, problem: Any, population: Any, seed: int = 0) -> Any:
        return population.x

    def describe(self, unit: str) -> str:
        return "a push"


def keys_again() -> ModuleType:
    """Load the keys of experiment files once more, with the attacks that are listed now."""
    spec = spec_from_file_location("experiment_again", experiment.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_and_what_the_command_knows_are_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run .venv/bin/python -m tools.attacks_page"
    assert LIST.read_text() == attacks_list(), "run .venv/bin/python -m tools.attacks_page"
    known = known_attacks()
    assert list(known) == [*ATTACKS, *SHIFTS]
    for name, kind in {**ATTACKS, **SHIFTS}.items():
        assert list(known[name].options) == list(kind.settable())
        assert known[name].size == kind.settings.size
        assert set(kind.settings.names) <= set(options_of(kind))


def test_files_can_name_every_listed_attack_and_shift() -> None:
    kinds = {name: make_attack(experiment.Attack(kind=name)) for name in ATTACKS}
    assert {name: type(attack) for name, attack in kinds.items()} == ATTACKS
    assert make_attack(experiment.Attack(kind="none")) is None
    assert (
        set(get_args(get_args(experiment.Data.model_fields["unseen_shift"].annotation)[0]))
        == set(MOVES)
        == {*SHIFTS} - {"label_shift"}
    )


def test_a_new_attack_is_one_class_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACKS, "push", Push)
    section = keys_again().Attack
    assert make_attack(section(kind="push")) == Push(0.3, 2.0, 1.0)
    assert make_attack(section(kind="push", epsilon=0.5, decay=3.0, norm=2.0)) == Push(0.5, 3.0, 2.0)
    described = section.model_json_schema()["properties"]
    assert described["decay"]["description"] == "push: how fast. Default: 2."
    assert "push" in described["kind"]["enum"]
    for kind in ("pgd", "fgsm", "wasserstein", "autoattack"):
        assert make_attack(section(kind=kind)) == make_attack(experiment.Attack(kind=kind)), "as without the new one"


def test_an_unknown_kind_is_an_error_that_lists_the_known_ones() -> None:
    for names, section, key in (
        (["none", *ATTACKS], experiment.Attack, "kind"),
        (MOVES, experiment.Data, "unseen_shift"),
    ):
        *first, last = map(repr, names)
        with pytest.raises(ValidationError, match=f"{', '.join(first)} or {last}"):
            section(**{key: "push"})
    with pytest.raises(ValidationError, match="'affine'"):
        experiment.Data(unseen_shift="label_shift")
