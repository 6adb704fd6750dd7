"""``wafl theory``: what the ball guarantees for saved runs."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Option

from wafl.base.bounds import check_box
from wafl.cli.shared import DataDir, StudyOrRun, Trust, load_runs, parse_norm, parse_numbers, reading, seen_and_unseen
from wafl.cli.terminal import make_console

if TYPE_CHECKING:
    from wafl.theory import Certificates, Concentration


def theory(
    run: StudyOrRun,
    radii: Annotated[str, Option(help="Certificates: radii of the ball, with commas, in the unit of the data.")] = (
        "0,0.1,0.25,0.5,1,2"
    ),
    norm: Annotated[str, Option(help="Certificates: the ground norm, 1, 2 or inf.")] = "2",
    metric: Annotated[str, Option(help="Certificates: loss, or error, the error rate of a linear model.")] = "loss",
    gamma: Annotated[float | None, Option(help="Bounds: the price of transport. Default: that of the run.")] = None,
    radius: Annotated[float | None, Option(help="Bounds: the radius of the ball. Default: L_z / gamma.")] = None,
    params_radius: Annotated[float | None, Option(help="Bounds: C in ||theta|| <= C. Default: ||theta||.")] = None,
    data_bounds: Annotated[str | None, Option(help="Bounds: the box of inputs, LOW,HIGH. Default: the data's.")] = None,
    label_cost: Annotated[
        float | None,
        Option(help="The price kappa of changing a label. Default: for bounds that of the run, for certificates inf."),
    ] = None,
    delta: Annotated[float, Option(help="Bounds: the probability that they fail.")] = 0.05,
    c1: Annotated[float | None, Option(help="Bounds: Fournier and Guillin's first constant.")] = None,
    c2: Annotated[float | None, Option(help="Bounds: Fournier and Guillin's second constant.")] = None,
    alpha: Annotated[float, Option(help="Bounds: Fournier and Guillin's moment, above 2.")] = 3.0,
    target_distance: Annotated[
        float | None, Option(help="Bounds: W_2 from the mixture to a target, as wafl weights measures it.")
    ] = None,
    target_examples: Annotated[int | None, Option(help="Bounds: how many of the target's examples that is by.")] = None,
    data_dir: DataDir = None,
    output: Annotated[Path | None, Option(help="Folder for the figure. Default: that of the study or run.")] = None,
    trust: Trust = False,
) -> None:
    """Print what is promised about saved runs, to whom, how surely and how loosely, and draw certificates.

    First what is promised at the middle one of --radii: for data near the training examples, near the distributions
    that these came from, for all clients and for the next. Then certificates at every radius, the constants, and
    bounds that explain more than they promise. What does not apply says which precondition fails.
    """
    console = make_console()
    with reading(trust):
        runs = load_runs(run)
        from wafl.cli.theory_tables import certificates, promises, theory_of
        from wafl.theory import certify, summarize
        from wafl.theory.certificates.certificate import plot_certificates
        from wafl.theory.guarantees import promised

        clients, unseen = seen_and_unseen(runs, run, data_dir)
        sizes, ground = parse_numbers("radii", radii), parse_norm(norm)
        concentration = _concentration(c1, c2, alpha, clients.train.shape)
        found: dict[str, Certificates] = {}
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
            found[name] = certify(each, clients, radii=sizes, norm=ground, metric=cast(Any, metric), label_cost=price)
            place = len(sizes) // 2
            said = promised(each, clients, unseen, found[name], place, delta)
            console.print(promises(name, found[name], sizes[place], said))
            console.print(certificates(name, found[name]))
            console.print(theory_of(name, each, summary))
        folder = output or run
        folder.mkdir(parents=True, exist_ok=True)
        plot_certificates(found, folder / "certificates.png")
    console.print(f"Figure: {folder / 'certificates.png'}", markup=False)


def _concentration(c1: float | None, c2: float | None, alpha: float, shape: tuple[int, ...]) -> "Concentration | None":
    from wafl.theory import Concentration

    if c1 is None and c2 is None:
        return None
    if c1 is None or c2 is None:
        raise ValueError("give --c1 and --c2 together: the bound needs both")
    return Concentration(c1, c2, alpha, math.prod(shape))
