"""Audit clients that never trained, and draws of the federation's own examples.

    python -m research audit [--smallest] [--data hospitals peterson-barney smartwatch]

Linear models (FedAvg) train on natural data, with 40% of the clients held out, 16 published points per label, and l2.
The table has the number of labels of these clients that are inside the ball, of the labels with enough examples to
tell. It has the same for draws of 40 of the federation's own examples. Further columns are the certified over the
measured loss, the largest measured over certified loss, and Spearman's rank correlation of a client's distance with its
measured loss. Data that are not installed are skipped.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from scipy import stats

import wafl
from benchmarks import options
from wafl.data.named.cache import data_folder
from wafl.data.named.natural import NATURAL
from wafl.promises.audit import Audit

RADII = [0.1, 0.5, 1.0]
DRAWN = 40


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument(
        "--data", nargs="+", choices=list(NATURAL), default=["hospitals", "peterson-barney", "smartwatch"]
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--points", type=int, default=16)
    parser.add_argument("--draws", type=int, default=20)
    given = options.read(parser, argv, data=["hospitals"], rounds=1, points=1, draws=1)
    print(
        "| data | held-out clients | their labels inside | draws inside | certified / measured | worst | correlation |"
    )
    for name in given.data:
        if NATURAL[name].find(data_folder(given.data_dir)) is None:
            print(f"{name} is not here: `wafl data list` says what it needs")
            continue
        print(show(name, given.data_dir, given.rounds, given.points, given.draws), flush=True)


def show(name: str, folder: Path | None, rounds: int, points: int, draws: int) -> str:
    """Return one line of the table."""
    started = time.process_time()
    clients = wafl.load_dataset(name, folder).partition(by_group=True)
    seen, unseen = clients.hold_out(0.4)
    model = wafl.models.mlr(seen)
    run = wafl.fit(model, seen, wafl.FedAvg(), rounds=rounds, local_epochs=1, learning_rate=0.1)
    with tempfile.TemporaryDirectory() as at:
        file = Path(at) / "certificate.json"
        wafl.certify(run, seen, radii=RADII, achieved=False).save(file, points=points)
        sites = [wafl.audit(file, run, unseen.of_clients([client])) for client in range(unseen.num_clients)]
        draws_of_seen = [wafl.audit(file, run, drawn(seen, draw)) for draw in range(draws)]
    ratio = math.fsum(site.certified for site in sites) / math.fsum(site.measured for site in sites)
    far = [math.sqrt(math.fsum(each.share * each.distance**2 for each in site.labels)) for site in sites]
    correlation = cast(Any, stats).spearmanr(far, [site.measured for site in sites]).statistic
    worst = max(site.measured / site.certified for site in sites)
    cells = (len(sites), inside(sites), inside(draws_of_seen), f"{ratio:.1f}", f"{worst:.2f}", f"{correlation:.2f}")
    seconds = time.process_time() - started
    return f"| {name} | {' | '.join(str(cell) for cell in cells)} |  {seconds:.0f} processor seconds"


def drawn(seen: wafl.Federation, draw: int) -> wafl.Federation:
    """Return a site with some of the federation's own training examples."""
    rows = torch.randperm(len(seen.train.y), generator=torch.Generator().manual_seed(draw))[:DRAWN]
    pair = seen.train.rows(rows, torch.float32), seen.train.y[rows]
    return wafl.Federation.from_arrays([pair], test_fraction=0.0, num_classes=seen.num_classes)


def inside(sites: Sequence[Audit]) -> str:
    """Return how many labels are inside, of the labels with enough examples."""
    known = [each.inside for site in sites for each in site.labels if each.inside is not None]
    return f"{sum(known)} of {len(known)}"


if __name__ == "__main__":
    main()
