"""The tool that breaks the package on purpose sees a mistake, and sees that there is none."""

from __future__ import annotations

import pytest

from tests.mutants import SMALL, SOURCE, Mutant, check_tests, hunt, of_lists, of_proofs

TEST = (f"{SMALL}::test_a_local_step_trains_like_its_reference[prox]",)
FILE = "local/descent.py"


@pytest.mark.slow
@pytest.mark.processes
def test_a_mistake_is_killed_and_what_changes_nothing_lives(capsys: pytest.CaptureFixture[str]) -> None:
    before = (SOURCE / FILE).read_bytes()
    old = 'state.scalars["mu"] * (state.params - state.start)'
    wrong = Mutant("wrong", FILE, old, 'state.scalars["mu"] * (state.start - state.params)', TEST)
    same = Mutant("same", FILE, old, 'state.scalars["mu"] * (-state.start + state.params)', TEST)
    assert hunt([wrong, same], jobs=2) == ["same"]
    assert "1 of 2 mutants live" in capsys.readouterr().out
    assert (SOURCE / FILE).read_bytes() == before


@pytest.mark.slow
@pytest.mark.processes
def test_tests_that_cannot_be_collected_do_not_count_as_killers() -> None:
    with pytest.raises(SystemExit, match="cannot be collected without a mutant"):
        check_tests([Mutant("lost", FILE, "", "pass", ("tests/nowhere.py",))])


def test_every_mutant_changes_its_file_and_has_a_name_of_its_own() -> None:
    mutants = [*of_lists(), *of_proofs()]
    assert len({mutant.name for mutant in mutants}) == len(mutants) > 60
    for mutant in mutants:
        assert mutant.source() != (SOURCE / mutant.path).read_text()
