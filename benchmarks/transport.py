"""`wafl.weights.mixture` at size: seconds, memory, value and proven gap, next to POT's own pairwise distances.

    OMP_NUM_THREADS=2 python -m benchmarks.transport [--smallest]
    OMP_NUM_THREADS=2 python -m benchmarks.transport --data ../shared/data

By default the clouds are Gaussian mixtures that share 30 components of rank 20, each in other proportions; with
--data they are MNIST images, each in other label proportions. The yardstick is `ot.emd2` from every source to the
target, the cost of the paper's linear program, timed in the same run.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import ot
from numpy.typing import NDArray

from benchmarks import options
from wafl import weights

Array = NDArray[np.float64]


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--sources", type=int, default=20)
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--tolerance", type=float, default=None)
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    given = options.read(parser, argv, sources=3, points=40, features=10)
    if given.data is None:
        *sources, target = gaussian_mixtures(given.sources + 1, given.points, given.features)
    else:
        *sources, target = mnist(given.sources + 1, given.points, given.data / "mnist.npz")
    before = peak_gigabytes()
    began = time.perf_counter()
    result = weights.mixture(sources, target, sample=None, tolerance=given.tolerance)
    ours = time.perf_counter() - began
    peak = peak_gigabytes()
    began = time.perf_counter()
    pairwise = [ot.emd2([], [], ot.dist(source, target), numItermax=10**9) for source in sources]
    yardstick = time.perf_counter() - began
    print(f"{len(sources)} sources and a target of {len(target)} points in {target.shape[1]} dimensions")
    print(f"mixture      {ours:7.1f} s, peak {peak:.2f} GB ({before:.2f} GB before)")
    print(f"ot.emd2      {yardstick:7.1f} s for the {len(sources)} pairs alone, ratio {ours / yardstick:.2f}")
    print(f"value        {result.value:.6g}, gap {result.gap:.3g} ({100 * result.gap / result.value:.3f}%)")
    print(f"nearest      {min(pairwise):.6g}, the single source")
    print("weights      " + " ".join(f"{weight:.3f}" for weight in result.weights))


def gaussian_mixtures(clouds: int, points: int, features: int) -> list[Array]:
    generator = np.random.default_rng(0)
    centers = 0.3 * generator.normal(size=(30, features))
    factors = generator.normal(size=(30, 20, features)) / 9.0
    made: list[Array] = []
    for _ in range(clouds):
        component = generator.choice(30, size=points, p=generator.dirichlet(np.full(30, 0.2)))
        inner = np.stack([generator.normal(size=20) @ factors[each] for each in component])
        made.append(centers[component] + inner + 0.05 * generator.normal(size=(points, features)))
    return made


def mnist(clouds: int, points: int, path: Path) -> list[Array]:
    generator = np.random.default_rng(0)
    with np.load(path) as arrays:
        x, y = arrays["x_train"].reshape(len(arrays["x_train"]), -1) / 255.0, arrays["y_train"]
    made: list[Array] = []
    for _ in range(clouds):
        share = generator.dirichlet(np.full(10, 0.3))[y]
        made.append(x[generator.choice(len(x), points, replace=False, p=share / share.sum())])
    return made


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
