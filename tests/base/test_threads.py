"""Pieces of work on several threads."""

from __future__ import annotations

import pytest
import torch

from wafl.base.threads import map_in_threads


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_and_threads_are_given_back(two_threads):
    inside = map_in_threads(lambda number: (number, torch.get_num_threads()), list(range(5)))
    assert inside == [(number, 1) for number in range(5)]
    assert torch.get_num_threads() == 2


def test_an_error_gives_threads_back_too(two_threads):
    with pytest.raises(ZeroDivisionError):
        map_in_threads(lambda number: 1 // number, [1, 0, 2])
    assert torch.get_num_threads() == 2
