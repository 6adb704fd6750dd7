"""Methods called with options that they do not have."""

from __future__ import annotations

from typing import Any

import pytest

import wafl


@pytest.mark.parametrize(
    ("method", "option", "said"),
    [
        ("FedPGM", "epsilom", r"FedPGM has no option 'epsilom': did you mean 'epsilon'\?"),
        ("FedAvg", "gamma", r"FedAvg has no option 'gamma': it has: local, server, client_weights"),
        ("FedRobust", "space", r"FedRobust has no option 'space': its map would also scale .* outputs as the examples"),
    ],
)
def test_an_option_that_a_method_lacks_is_refused_with_what_it_has(method: str, option: str, said: str) -> None:
    call: Any = wafl.METHODS[method]
    with pytest.raises(TypeError, match=said):
        call(**{option: 1.0})
