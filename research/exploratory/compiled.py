"""Time the default CNN's local step on a CPU with ``torch.compile`` and with plain PyTorch.

    python -m research compiled [--smallest] [--steps 60] [--mode max-autotune]

One thread, batches of 32 images of 28 x 28; milliseconds of processor time per step, and seconds until the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import wafl
from benchmarks import options


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--mode", default="default")
    parser.add_argument("--backend", default="inductor")
    given = options.read(parser, argv, steps=1, backend="eager")
    torch.set_num_threads(1)
    x, y = torch.rand(32, 1, 28, 28), torch.arange(32) % 10
    clients = wafl.Federation.from_arrays([(x, y)], num_classes=10)
    plain, compiled = (wafl.models.cnn(clients) for _ in range(2))
    forward = torch.compile(compiled, mode=given.mode, backend=given.backend)
    began = time.perf_counter()
    step(compiled, forward, x, y)
    started = time.perf_counter() - began
    before, ours, after = (
        milliseconds(model, call, x, y, given.steps)
        for model, call in ((plain, plain), (compiled, forward), (plain, plain))
    )
    usual = (before + after) / 2.0
    print(f"plain {usual:.1f} ms, compiled {ours:.1f} ms, ratio {ours / usual:.2f}, first step after {started:.1f} s")


def step(model: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> None:
    """Take one step of gradient descent."""
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(cross_entropy(forward(x), y), parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(gradient, alpha=0.1)


def milliseconds(model: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, steps: int) -> float:
    """Return the processor time of a step."""
    began = time.process_time()
    for _ in range(steps):
        step(model, forward, x, y)
    return 1000.0 * (time.process_time() - began) / steps


if __name__ == "__main__":
    main()
