"""The linter of phrases finds each of them in a planted text, and fails."""

from __future__ import annotations

import pytest
from tools import phrases


@pytest.mark.parametrize("phrase", phrases.PHRASES)
def test_a_planted_phrase_is_found_with_its_line(phrase: str) -> None:
    first, *rest = phrase.split()
    broken = "\n".join([first, " ".join(rest)]) if rest else first
    assert list(phrases.found(f"A line.\nThe loss is {phrase} here.")) == [(2, phrase)]
    assert list(phrases.found(f"A line.\nThe loss is {broken.upper()} here.")) == [(2, phrase.upper())]


def test_other_words_and_quotations_are_not_found() -> None:
    assert not list(phrases.found("So often, many that offer whomever of his own: no body."))
    assert not list(phrases.found("> The loss of nobody is that of a quotation."))


def test_a_planted_phrase_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(phrases, "found", lambda text: iter([(7, "that of")] if text.startswith("# WAFL") else []))
    assert phrases.main() == 1
    assert capsys.readouterr().out.startswith("README.md:7: 'that of' hides a noun: repeat it, or name the person\n")
