"""Measure models on their clients' data for a page: by client, by radius, and the ball's moves of examples."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import torch
from torch import Tensor

from wafl.attacks import Attack, WassersteinShift
from wafl.base.describe import rounded
from wafl.base.norms import norm_name
from wafl.data.federation import Federation
from wafl.evaluation.compare import compare
from wafl.evaluation.evaluate import present_clients
from wafl.models import title as model_title
from wafl.objectives import Wasserstein
from wafl.objectives.surrogate import move_one_lane
from wafl.report import charts, sections
from wafl.report.page import Block, Cell, Figure, Pictures, Reading, Section, Stop, Table, Walk, Walks
from wafl.results.run import Run
from wafl.studies.pages.shown import radius_against_gamma
from wafl.theory import calibrate, certify
from wafl.theory.certificates.mixture import Mixture

MOST_EXAMPLES = 120
"""The number of test examples for balls and certificates, equal for each client."""
MOST_MOVED = 120
MOST_WALKS = 8
MOST_CLIENTS = 24
"""The number of clients between which distances are measured."""
SIZES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
"""The radii, as fractions of the data's spread: the root mean square distance of test examples from their mean."""
PICTURES = 10
NORMS = (2.0, math.inf, 1.0)
FEATURES = 12
STEPS = 50
"""The maximum number of ascent steps of the worst shift within a radius."""
DOUBLING_STEPS = 20
"""The maximum number of ascent steps of the search for the ball in which the loss doubles."""

Notify = Callable[[str], None]


def measure(
    runs: Mapping[str, Run],
    clients: Federation,
    unseen: Federation | None = None,
    attack: Attack | None = None,
    told: Notify = lambda what: None,
    lost: Notify = lambda why: None,
) -> list[Section]:
    """Measure models on data; ``told`` receives each step, and ``lost`` the reason for an omitted section."""
    methods, few = {label: run.method for label, run in runs.items()}, _thinned(clients, MOST_EXAMPLES)
    steps: dict[str, Callable[[], Section | None]] = {
        "client by client": lambda: _by_client(runs, clients, unseen, attack),
        "radius by radius": lambda: _radius(runs, few),
        "what the ball moves": lambda: _moves(runs, few),
        "radius and gamma": lambda: _calibration(runs, few),
        "client weights and distances": lambda: _weights(runs, methods, clients),
        "the data": lambda: _partition(clients),
    }
    made: list[Section] = []
    for what, make in steps.items():
        told(what)
        try:
            made += [section for section in [make()] if section is not None]
        except (ValueError, RuntimeError, IndexError) as error:
            lost(f"{what}: {error}")
    return made


def _by_client(
    runs: Mapping[str, Run], clients: Federation, unseen: Federation | None, attack: Attack | None
) -> Section | None:
    attacks: list[Attack | None] = [None] if attack is None else [None, attack]
    compared = compare(runs, clients, attacks=attacks, unseen=unseen).sections()
    return next((section for section in compared if section.title == "Client by client"), None)


@dataclass(frozen=True)
class _Shifted:
    """A model on its clients' test examples, after the ball's largest moves."""

    loss: float
    accuracy: float | None
    worst: tuple[str, float]
    x: Tensor
    moved: Tensor


def _shift(mixture: Mixture, clients: Federation, radius: float) -> _Shifted:
    population = mixture.population()
    attack = WassersteinShift(radius, steps=STEPS, tolerance=1e-2, restarts=0).within(clients.bounds)
    moved = attack.move(mixture.problem, population)
    share = population.shares()
    losses = mixture.problem.loss(moved, population.y)[0]
    correct = None
    if clients.num_classes is not None:
        correct = (mixture.problem.outputs(moved).argmax(-1) == population.y)[0].double()
    values = losses if correct is None else 100.0 * correct
    by_client = [
        (name, float(values[slice(*clients.test.offsets[index : index + 2].tolist())].mean()))
        for index, name in enumerate(clients.names)
    ]
    worst = min(by_client, key=lambda pair: -pair[1] if correct is None else pair[1])
    accuracy = None if correct is None else 100.0 * float(share @ correct)
    return _Shifted(float(share @ losses), accuracy, worst, population.x[0], moved[0])


def _radius(runs: Mapping[str, Run], clients: Federation) -> Section | None:
    """Return the section with one slider per model; models of a sweep share one, each at its training radius."""
    made = [*_sweeps(runs, clients), *_fixed(runs, clients)][:MOST_WALKS]
    walks, caveats = [walk for walk, _ in made], [caveat for _, caveat in made]
    if not walks:
        return None
    between = "Between the radii that were computed, numbers are about (≈) those on the line between two of them"
    lead = (
        "Drag the slider to enlarge the ball. The loss that an ascent reaches inside it lies below what is "
        f"certified for every distribution in it. {between}, and what is certified for the larger ball holds in the "
        "smaller (≤)."
    )
    unproven = list(dict.fromkeys(caveat for caveat in caveats if caveat))
    if unproven and all(caveats):
        lead = f"Drag the slider to enlarge the ball. {between}."
    lead = " ".join([*unproven, lead])
    count, unit = len(clients.test.y), clients.unit
    caption = (
        f"The l2 ball around {count:,} clean test examples, mixed with the model's client weights; radii in {unit}. "
        f"Accuracy, worst client and loss reached are under the worst l2 Wasserstein shift within that radius, found "
        f"with at most {STEPS} ascent steps from each example. One seed. Data: {clients.title}. Model: {_models(runs)}."
    )
    return Section("Radius", lead, [Walks(walks, caption)])


_Step = tuple[str, float, _Shifted, float]
"""A position of a slider: its text, the radius, the shifted examples, and the certified or estimated loss."""


def _fixed(runs: Mapping[str, Run], clients: Federation) -> list[tuple[Walk, str | None]]:
    """Return the sliders of single models, each in balls of several sizes, with the reason if one is unproven."""
    x = clients.test.x.double().flatten(1)
    spread = float((x - x.mean(0)).square().sum(1).mean().sqrt())
    radii = [rounded(size * spread, 2) for size in SIZES]
    walks: list[tuple[Walk, str | None]] = []
    for label, run in list(_distinct(runs).items())[:MOST_WALKS]:
        mixture = Mixture.of(run, clients, "test")
        certificates = certify(run, clients, radii=radii, split="test", achieved=False)
        shifts = [_shift(mixture, clients, radius) for radius in radii]
        bounds = [certificates.best_proven(row) for row in certificates.rows]
        steps = list(zip([f"{radius:g}" for radius in radii], radii, shifts, bounds, strict=True))
        chart = _chart(label, run.method, "radius", steps, certificates.column)
        # The same model is in every ball, so a certified loss also bounds the smaller balls.
        stops = _stops(steps, certificates.column, clients, bound=certificates.column == "certified")
        walks.append((Walk(label, stops, chart), certificates.caveat))
    return walks


def _sweeps(runs: Mapping[str, Run], clients: Federation) -> list[tuple[Walk, str | None]]:
    """Return the sliders of sweeps over one number, each model at the radius that its training achieved.

    A ball at a layer or with a cost matrix has a different unit than the data, so its sweeps are left out. With each
    slider comes the reason why the first of its models is not proven, if there is one.
    """
    groups: dict[tuple[str, str], dict[float, Run]] = {}
    for run in runs.values():
        ball = run.settings["method"].get("objective") or {}
        if ball.get("space") is not None or ball.get("cost_matrix") is not None:
            continue
        swept = [(name, value) for name, value in run.point.items() if name != "seed"]
        for name, value in swept if len(swept) == 1 else []:
            if isinstance(value, int | float):
                groups.setdefault((run.method, name), {})[float(value)] = run
    walks: list[tuple[Walk, str | None]] = []
    for (method, name), models in groups.items():
        radii = {value: run.history[-1].achieved_radius for value, run in models.items() if run.history}
        known = {value: radius for value, radius in radii.items() if radius}
        if len(known) < 2:
            continue
        steps, caveats = list[_Step](), list[str]()
        for value, radius in sorted(known.items(), key=lambda pair: pair[1]):
            shift = _shift(Mixture.of(models[value], clients, "test"), clients, radius)
            certificates = certify(models[value], clients, radii=[radius], split="test", achieved=False)
            steps.append((f"{radius:.3g} ({name}={value:g})", radius, shift, certificates.best_proven(certificates[0])))
            caveats += [certificates.caveat] if certificates.caveat else []
        column = "estimate" if caveats else "certified"
        chart = _chart(method, method, "radius each model was trained for", steps, column)
        stops = _stops(steps, column, clients, bound=False)
        walks.append((Walk(f"{method}, the sweep over {name}", stops, chart), next(iter(caveats), None)))
    return walks


def _chart(label: str, method: str, axis: str, steps: Sequence[_Step], column: str) -> charts.Chart:
    """Draw the certified or estimated loss by radius, and the achieved loss."""
    radii, bounds = [radius for _, radius, _, _ in steps], [bound for _, _, _, bound in steps]
    reached = charts.Curve("reached", radii, [shift.loss for _, _, shift, _ in steps], dash=True, of=label)
    curves, palette = [charts.Curve(column, radii, bounds, of=label), reached], charts.colors([label], {label: method})
    return charts.lines(curves, axis, "expected loss", palette, marks=True)


def _stops(steps: Sequence[_Step], column: str, clients: Federation, *, bound: bool) -> list[Stop]:
    """Return the positions of a slider; with ``bound``, each loss also bounds the loss in smaller balls."""
    chosen, stops = _pictured(clients), list[Stop]()
    for text, radius, shift, loss in steps:
        client, worst = shift.worst
        numbers = {} if shift.accuracy is None else {"accuracy": Reading(shift.accuracy, "%")}
        numbers["worst client"] = Reading(worst, "" if shift.accuracy is None else "%", client)
        numbers |= {"loss reached": Reading(shift.loss), f"loss {column}": Reading(loss, bound=bound)}
        stops.append(Stop(text, radius, numbers, _strips(shift, clients, chosen)))
    return stops


def _strips(shift: _Shifted, clients: Federation, chosen: Tensor) -> Pictures | None:
    """Return pictures of a few examples: original, moved and their difference; None if they are not images."""
    if not charts.image_shape(clients.input_shape) or not len(chosen):
        return None
    original, moved = (values[chosen].float().numpy() for values in (shift.x, shift.moved))
    low, high = clients.bounds or (float(original.min()), float(original.max()))
    strips = {
        "original": charts.image_strip(original, low, high),
        "moved": charts.image_strip(moved, low, high),
        "difference": charts.image_difference(moved, original),
    }
    return Pictures(strips)


def _moves(runs: Mapping[str, Run], clients: Federation) -> Section | None:
    """Return the section with each norm's smallest ball in which a model's loss doubles, and the moves in this ball."""
    clients = _thinned(clients, MOST_MOVED)
    chosen, blocks = _pictured(clients), list[Block]()
    image = charts.image_shape(clients.input_shape)
    for label, run in list(_distinct(runs).items())[:3]:
        mixture, rest = Mixture.of(run, clients, "test"), 0.0
        strips, sizes = dict[str, str](), list[str]()
        for norm in NORMS if image else NORMS[:1]:
            radius, rest, shift = _doubling(mixture, clients, norm)
            name = norm_name(norm)
            sizes.append(f"{name} {radius:.3g} (loss {shift.loss:.3g})")
            shown = _strips(shift, clients, chosen)
            if shown is not None:
                original, moved, change = shown.strips.values()
                strips |= {"original": original, f"moved, {name}": moved, f"{name} difference": change}
            else:
                blocks.append(_features(f"{label}, {name} radius {radius:.3g}", shift, clients))
        if strips:
            radii = f"radius by norm, in {clients.unit}: {', '.join(sizes)}"
            caption = f"{label}, one seed: {radii}; loss on clean data {rest:.3g}."
            blocks.append(Pictures(strips, caption))
    if not blocks:
        return None
    what = "Added is blue, taken away is orange." if image else "Distances are in each input's own unit."
    lead = (
        "The smallest ball in which the model's loss doubles (if it can), and what happens in it, with at most "
        f"{DOUBLING_STEPS} ascent steps. {what}"
    )
    return Section("What the ball moves", lead, blocks)


def _doubling(mixture: Mixture, clients: Federation, norm: float) -> tuple[float, float, _Shifted]:
    """Return the radius that doubles the loss, or reaches its maximum, with the loss at rest and the shift."""
    population = mixture.population()
    share, rest = population.shares(), float(population.shares() @ mixture.problem.loss(population.x, population.y)[0])

    def at(gamma: float) -> tuple[float, float, Tensor]:
        objective = Wasserstein(gamma, norm=norm, steps=DOUBLING_STEPS).within(clients.bounds)
        move = move_one_lane(objective, mixture.problem, population.x, population.y)
        loss = float(share @ mixture.problem.loss(move.x_adv, population.y)[0])
        return loss, math.sqrt(float(share @ move.cost[0])), move.x_adv

    low, high, last = 1e-6, 1e6, at(1e-6)
    for _ in range(12):
        middle = math.sqrt(low * high)
        move = at(middle)
        if move[0] >= 2.0 * rest:
            low, last = middle, move
        else:
            high = middle
    loss, radius, moved = last
    return radius, rest, _Shifted(loss, None, ("", 0.0), population.x[0], moved[0])


def _features(label: str, shift: _Shifted, clients: Federation) -> Table:
    """Return a table of the inputs that move farthest, in the model's units and, if known, in their own units."""
    far = (shift.moved - shift.x).abs().mean(0).flatten()
    scale = clients.test.prepare.scale
    raw = far if scale is None else far * scale.to(far).expand(clients.input_shape).flatten()
    names, rows = clients.columns or [f"input {index}" for index in range(len(far))], list[list[Cell]]()
    for index in far.argsort(descending=True)[:FEATURES].tolist():
        scaled = "" if scale is None else f" ({float(far[index]):.2g} standard deviations)"
        rows.append([Cell(names[index]), Cell(f"{float(raw[index]):.3g}{scaled}", float(far[index]))])
    return Table([f"input, {label}", "mean distance moved"], rows)


def _calibration(runs: Mapping[str, Run], clients: Federation) -> Section | None:
    gammas = [10.0**power for power in (-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2)]
    curves: list[charts.Curve] = []
    for label, run in list(_distinct(runs).items())[:4]:
        ball = calibrate(run, clients, gammas=gammas, split="test", steps=50, tolerance=1e-4)
        pairs = [(g, r) for g, r in zip(ball.gammas, ball.radii, strict=True) if 0 < r < math.inf]
        curves.append(charts.Curve(label, [g for g, _ in pairs], [r for _, r in pairs]))
    what = (
        f"of each gamma (l2 ball, in {clients.unit}), for the trained models on their clients' clean test examples. "
        f"One seed. Data: {clients.title}. Model: {_models(runs)}"
    )
    drawn = [curve for curve in curves if curve.x]
    return radius_against_gamma(drawn, what) if drawn else None


def _weights(runs: Mapping[str, Run], methods: Mapping[str, str], clients: Federation) -> Section | None:
    values = {label: run.client_weights.tolist() for label, run in runs.items()}
    blocks = [sections.weights(values, clients.names, methods), _distances(clients)]
    shown = [block for block in blocks if block is not None]
    lead = "Whose examples count how much, and how far the clients are from each other."
    return Section("Client weights", lead, shown) if shown else None


def _distances(clients: Federation) -> Figure | None:
    """Return a figure of W_2 between the clients' training examples, if POT is installed."""
    from wafl.weights.transport.distances import distance

    few = range(min(clients.num_clients, MOST_CLIENTS))
    points = [clients.train.of(client)[0][:400].flatten(1).double() for client in few]
    if len(points) < 2 or points[0].shape[1] > 20_000:
        return None
    try:
        squares = {pair: distance(points[pair[0]], points[pair[1]], sample=100).value for pair in combinations(few, 2)}
    except (ValueError, ImportError):  # POT is not installed
        return None
    rows = [[math.sqrt(max(squares.get((min(a, b), max(a, b)), 0.0), 0.0)) for b in few] for a in few]
    names = list(clients.names[: len(few)])
    more = f", the first {len(names)} of {clients.num_clients}" if clients.num_clients > len(names) else ""
    chart = charts.heatmap(rows, names, names, "W_2")
    caption = f"W_2 between the training examples of the clients{more}, at most 100 each, in {clients.unit}."
    return Figure({"distances": chart}, caption)


def _partition(clients: Federation) -> Section:
    counts = clients.label_counts().tolist() if clients.num_classes is not None else None
    classes = clients.classes or [str(label) for label in range(clients.num_classes or 0)]
    return sections.partition(counts, clients.num_examples, clients.names, classes)


def _thinned(clients: Federation, most: int) -> Federation:
    """Return the clients with an even subset of test examples, about ``most`` in all and at least one each."""
    if len(present_clients(clients)) < clients.num_clients:  # a mixture needs examples of every client
        return replace(clients, test=clients.train)
    few = max(1, most // clients.num_clients)
    ends = pairwise(clients.test.offsets.tolist())
    rows = [torch.linspace(begin, end - 1, min(few, end - begin)).round().long() for begin, end in ends]
    return replace(clients, test=clients.test.picked(rows))


def _pictured(clients: Federation) -> Tensor:
    """Return the indices of the shown test examples: one of each label, up to a limit."""
    y = clients.test.y
    if clients.num_classes is None:
        return torch.arange(min(PICTURES, len(y)))
    firsts = [(y == label).nonzero().flatten()[:1] for label in range(clients.num_classes)]
    return torch.cat([first for first in firsts if len(first)][:PICTURES])


def _models(runs: Mapping[str, Run]) -> str:
    """Return the models of the runs in words, each once."""
    return ", ".join(dict.fromkeys(model_title(run.module) for run in runs.values()))


def _distinct(runs: Mapping[str, Run]) -> dict[str, Run]:
    """Return the first run of each method."""
    firsts: dict[str, tuple[str, Run]] = {}
    for label, run in runs.items():
        firsts.setdefault(run.method, (label, run))
    return dict(firsts.values())
