"""One thread a test process: the suite runs one process a core."""

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("wafl", deadline=None, derandomize=True)
settings.load_profile("wafl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for other processes comes first: the other worker has the processor meanwhile."""
    items.sort(key=lambda item: "test_flower_deployment" not in item.nodeid)
