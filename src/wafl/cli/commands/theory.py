"""``wafl theory``: what the ball guarantees for saved runs."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from wafl.base.bounds import check_box
from wafl.cli.shared import StudyOrRun, Trust, load_runs, parse_norm, parse_numbers, reading, seen_and_unseen
from wafl.cli.terminal import make_console

if TYPE_CHECKING:
    from wafl.theory import Certificates, Concentration


def theory(
    run: StudyOrRun,
    radii: str = "0,0.1,0.25,0.5,1,2",
    norm: str = "2",
    metric: str = "loss",
    gamma: float | None = None,
    radius: float | None = None,
    params_radius: float | None = None,
    data_bounds: str | None = None,
    label_cost: float | None = None,
    delta: float = 0.05,
    c1: float | None = None,
    c2: float | None = None,
    alpha: float = 3.0,
    target_distance: float | None = None,
    target_examples: int | None = None,
    data_dir: Path | None = None,
    output: Path | None = None,
    trust: Trust = False,
) -> None:
    """Print what is promised about saved runs, to whom, how surely and how loosely, and draw certificates."""
    console = make_console()
    with reading(trust):
        runs = load_runs(run)
        from wafl.cli.theory_tables import certificates, promises, theory_of
        from wafl.theory import certify, summarize
        from wafl.theory.certificates.certificate import plot_certificates
        from wafl.theory.summary import promised

        clients, unseen = seen_and_unseen(runs, run, data_dir)
        sizes, ground = parse_numbers("radii", radii), parse_norm(norm)
        concentration = _concentration(c1, c2, alpha, clients.train.shape)
        bounds: dict[str, Certificates] = {}
        for name, each in runs.items():
            summary = summarize(
                each,
                clients,
                gamma=gamma,
                radius=radius,
                params_radius=params_radius,
                data_bounds=None if data_bounds is None else check_box(parse_numbers("data_bounds", data_bounds)),
                label_cost=label_cost,
                delta=delta,
                concentration=concentration,
                target_distance=target_distance,
                target_examples=target_examples,
            )
            price = math.inf if label_cost is None else label_cost
            bounds[name] = certify(each, clients, radii=sizes, norm=ground, metric=cast(Any, metric), label_cost=price)
            middle = len(sizes) // 2
            if (caveat := bounds[name].caveat) is not None:
                console.print(f"{name}: {caveat}", markup=False, style="yellow")
            rows = promised(each, clients, unseen, bounds[name], middle, delta)
            console.print(promises(name, bounds[name], sizes[middle], rows))
            console.print(certificates(name, bounds[name]))
            console.print(theory_of(name, each, summary))
        folder = output or run
        folder.mkdir(parents=True, exist_ok=True)
        plot_certificates(bounds, folder / "certificates.png")
    console.print(f"Figure: {folder / 'certificates.png'}", markup=False)


def _concentration(c1: float | None, c2: float | None, alpha: float, shape: tuple[int, ...]) -> "Concentration | None":
    from wafl.theory import Concentration

    if c1 is None and c2 is None:
        return None
    if c1 is None or c2 is None:
        raise ValueError("give --c1 and --c2 together: the bound needs both")
    return Concentration(c1, c2, alpha, math.prod(shape))
