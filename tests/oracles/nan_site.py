"""A site with data that pass every check while they are read, and are NaN in the model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

import wafl

SITES = 12


def site(number: int) -> wafl.Federation:
    """Return one of twelve clients of scikit-learn's digits, with one example of NaN."""
    clients = wafl.load_dataset("digits").partition(num_clients=SITES, iid=True, test_fraction=0.0)
    x, y = clients.train.of(number)
    one = wafl.Federation.from_arrays([(x, y)], test_fraction=0.0, names=[f"site-{number:02d}"], num_classes=10)
    broken = x.clone()
    broken[0] = torch.nan
    return replace(one, train=replace(one.train, raw=broken))


def __getattr__(name: str) -> Any:
    """Return the function of a site, such as ``site_07``."""
    if not name.startswith("site_"):
        raise AttributeError(name)
    return partial(site, int(name.removeprefix("site_")))
