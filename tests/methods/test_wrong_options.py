"""Methods called with options that they do not have."""

from __future__ import annotations

from typing import Any

import pytest

import wafl


@pytest.mark.parametrize(
    ("method", "option", "message"),
    [
        ("FedPGM", "epsilom", r"FedPGM has no option 'epsilom': did you mean 'epsilon'\?"),
        ("FedAvg", "gamma", r"FedAvg has no option 'gamma': it has: local, server, client_weights"),
        ("FedRobust", "space", r"FedRobust has no option 'space': its map would also scale .* outputs as the examples"),
    ],
)
def test_an_option_that_a_method_lacks_is_refused_with_what_it_has(method: str, option: str, message: str) -> None:
    call: Any = wafl.METHODS[method]
    with pytest.raises(TypeError, match=message):
        call(**{option: 1.0})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (wafl.WAFL, r"^wafl\.WAFL is not called: pass wafl\.WAFL\(\), with its options"),
        ("wafl", r"^unknown method 'wafl': did you mean wafl\.WAFL\(\)\?$"),
        ("nothing", r"^unknown method 'nothing': use one of wafl\.WAFL\(\.\.\.\), "),
        ({"method": "WAFL"}, r"^unknown method \{'method': 'WAFL'\}: use one of "),
    ],
)
def test_what_is_not_a_method_is_refused_with_the_one_that_was_meant(given: Any, message: str) -> None:
    clients = wafl.Federation.from_arrays([([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1])])
    with pytest.raises(TypeError, match=message):
        wafl.fit(wafl.models.mlr(clients), clients, given, rounds=1, local_steps=1)
