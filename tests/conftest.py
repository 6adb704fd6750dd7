"""One thread a test process: the suite runs one process a core."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("wafl", deadline=None, derandomize=True)
settings.load_profile("wafl")
