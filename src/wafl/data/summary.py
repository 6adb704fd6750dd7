"""Describe a federation: its statistics, and the properties that make training hard."""

from typing import Any

import torch

from wafl.base.describe import some
from wafl.base.errors import DataWarning, warn_user
from wafl.data.scales import of_one_class, uneven_columns


def describe(clients: Any, *, own_names: bool) -> str:
    """Return the statistics of a federation as text; with ``own_names``, the names of clients are listed."""
    sizes = torch.tensor(clients.num_examples, dtype=torch.float64)
    rows = [
        ("clients", f"{clients.num_clients}" + (f": {some(clients.names, 8)}" if own_names else "")),
        ("examples", f"{int(sizes.sum()):,}" + (f" ({clients.left_out:,} left out)" if clients.left_out else "")),
        ("training / test", f"{len(clients.train.y):,} / {len(clients.test.y):,}"),
        ("examples per client", f"mean {sizes.mean():.1f}, std {sizes.std(correction=0):.1f}"),
        ("", f"min {int(sizes.min())}, max {int(sizes.max())}"),
    ]
    if clients.num_classes is not None:
        held = (clients.label_counts() > 0).sum(1)
        spread = f"{int(held.min())}" if held.min() == held.max() else f"{int(held.min())} to {int(held.max())}"
        rows.append(("labels per client", f"{spread} of {clients.num_classes}"))
        rows += [("", alone)] if (alone := of_one_class(clients.names, clients.label_counts())) else []
    if clients.classes is not None:
        rows.append(("classes", some(clients.classes, 8)))
    if clients.columns is not None:
        rows.append(("inputs", some(clients.columns, 8)))
    rows += [("shape", f"{clients.input_shape}"), ("unit", clients.unit)]
    return "\n".join(f"{name:<20} {value}" for name, value in rows)


def warn_of_data(clients: Any) -> None:
    """Warn of columns on different scales, and of clients with a single class."""
    counts = clients.label_counts() if clients.num_classes else None
    for message in (uneven_columns(clients.train, clients.columns), of_one_class(clients.names, counts)):
        if message:
            warn_user(message, DataWarning)
