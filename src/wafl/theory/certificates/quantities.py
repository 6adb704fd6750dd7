"""The quantities that can be certified, the expected loss and the error rate, and the search for the best gamma."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wafl.base.describe import rounded
from wafl.base.errors import PreconditionError
from wafl.tasks.task import Task
from wafl.theory.certificates.certificate import Certificate, Certificates, Quantity, Question, Reach
from wafl.theory.certificates.mixture import Asked, AskMeans, Means
from wafl.theory.certificates.sampling import Domain, largest_surrogate
from wafl.theory.certificates.upper import AtRest, ErrorSurrogate, Inquiry, SearchedSurrogate, UpperBound, setting_of
from wafl.theory.networks.margins import leads_of, margins_of

RUNG = 16.0
"""The ratio of neighboring gammas in the first grid, above the limit."""
BEYOND = 1.5
"""How much smaller the next gamma is than the one at which moves would cost the squared radius by a power law."""
CLOSE = 1e-4
"""How close the mean cost must come to the squared radius; the value only has the square of gamma's error."""
WIDE = 2.0
"""The ratio of two gammas between which a power law says little."""
NEGLIGIBLE = 1e-10
"""What fraction of the value may be given away if the minimum would be at the limit itself."""
FLOOR = 1e-40


@dataclass(frozen=True)
class Surrogate:
    """``E[phi_gamma]`` and the mean cost of the moves at one gamma; the cost is minus the slope in gamma."""

    value: float
    cost: float


@dataclass(frozen=True)
class Dual:
    """What clients answered, by the excess of gamma over the limit, and what follows from it for any radius."""

    limit: float
    known: Mapping[float, Surrogate]

    def least(self, radius: float) -> tuple[float, float]:
        """The minimum over the gammas that were asked about, and the gamma that attains it."""
        values = {excess: (self.limit + excess) * radius**2 + answer.value for excess, answer in self.known.items()}
        best = min(values, key=values.__getitem__)
        return values[best], self.limit + best

    def balanced(self, radius: float) -> list[float]:
        """Return the gamma at which moves cost ``radius^2`` by a power law between its neighbors, if it has two."""
        budget = radius**2
        cheap = [excess for excess, answer in self.known.items() if 0.0 < answer.cost <= budget]
        dear = [excess for excess, answer in self.known.items() if budget < answer.cost < math.inf]
        if not cheap or not dear:
            return []
        low, high = max(dear), min(cheap)
        above, below = self.known[low].cost, self.known[high].cost
        return [self.limit + low * (high / low) ** (math.log(above / budget) / math.log(above / below))]

    def reached(self, radius: float) -> float:
        """The loss of a distribution inside the ball, if the answers are what moves of that mean cost attain.

        It mixes the moves at two neighboring gammas, so that their mean cost is ``radius^2``. If no moves cost as much,
        the rest goes where each unit of cost gains the limit; minus infinity if nothing is known of cheaper ones.
        """
        budget = radius**2
        cheap = [excess for excess, answer in self.known.items() if answer.cost <= budget]
        dear = [excess for excess, answer in self.known.items() if budget < answer.cost < math.inf]
        if not cheap:
            return -math.inf
        near = min(cheap, key=lambda excess: budget - self.known[excess].cost)
        if not dear:
            return self.loss(near) + self.limit * (budget - self.known[near].cost)
        far = min(dear, key=lambda excess: self.known[excess].cost)
        share = (budget - self.known[near].cost) / (self.known[far].cost - self.known[near].cost)
        return (1.0 - share) * self.loss(near) + share * self.loss(far)

    def loss(self, excess: float) -> float:
        """The mean loss of the moves at one of the gammas that were asked about."""
        answer = self.known[excess]
        return answer.value + ((self.limit + excess) * answer.cost if answer.cost > 0 else 0.0)


def search_dual(
    ask: Callable[[Sequence[float]], Means],
    radii: Sequence[float],
    limit: float,
    close: float = CLOSE,
    first: Sequence[float] = (),
) -> Dual:
    """Ask clients about a few gammas at a time, until the best one for each radius is known.

    Every answer is used for every radius. The derivative in gamma is ``radius^2 - cost``, so the search is for the
    gamma at which the cost is the squared radius; ``close`` is how close it must come. It starts with the gammas
    ``first``, if there are any, else with a wide grid.

    >>> dual = search_dual(lambda gammas: Means([1 / g for g in gammas], [g**-2 for g in gammas]), [2.0], 0.0, 1e-8)
    >>> [round(number, 6) for number in dual.least(2.0)]
    [4.0, 0.5]
    """
    known: dict[float, Surrogate] = {}
    dual = Dual(limit, known)

    def learn(excesses: Sequence[float]) -> None:
        fresh = sorted({excess for excess in excesses if excess not in known})
        means = ask([limit + excess for excess in fresh])
        known.update(zip(fresh, map(_usable, means.value, means.cost), strict=True))

    scale = limit if limit > 0 else 1.0
    learn([gamma - limit for gamma in first] or [scale * RUNG**rung for rung in range(-3, 4)])
    for turn in range(200):
        wanted = {radius: _next(dual, radius, turn, close) for radius in radii if radius > 0}
        excesses = [excess for excess in wanted.values() if excess is not None]
        if not excesses:
            break
        learn(excesses)
    return dual


def _usable(value: float, cost: float) -> Surrogate:
    """Return the answer, infinite if it is NaN, so that nothing is proven there."""
    return Surrogate(math.inf, math.inf) if math.isnan(value + cost) else Surrogate(value, cost)


def _next(dual: Dual, radius: float, turn: int, close: float) -> float | None:
    """Return the excess to ask about next; None if there is nothing more to gain.

    Raises PreconditionError if every gamma that float64 can hold has an infinite cost.
    """
    known, limit, budget = dual.known, dual.limit, radius**2
    dear = [excess for excess, answer in known.items() if answer.cost > budget]
    cheap = [excess for excess, answer in known.items() if answer.cost <= budget]
    if not cheap:
        higher = max(dear) * RUNG
        if math.isinf(limit + higher):
            raise PreconditionError(
                "no gamma gives a finite bound: the model's outputs are so large that float64 overflows; use a model "
                "of smaller weights, or smaller inputs"
            )
        return higher
    if not dear:
        lowest = min(cheap)
        value = abs((limit + lowest) * budget + known[lowest].value)
        # phi only increases as gamma decreases, so no smaller gamma gains more than this.
        if lowest * budget <= NEGLIGIBLE * value or lowest <= FLOOR:
            return None
        return lowest * max(_power_law(dual, budget) / BEYOND, 1.0 / RUNG)
    low, high = max(dear), min(cheap)
    above, below = known[low].cost, known[high].cost
    least, reached = dual.least(radius)[0], dual.reached(radius)
    if high <= low * (1.0 + close) or below >= budget * (1.0 - close) or least - reached <= NEGLIGIBLE * abs(least):
        return None
    # Try where a power law through both ends comes close to the budget: the cost almost follows one. Where it does not,
    # halves every now and then end the search, and between close ends their tangents, which meet at an error's kink.
    wide = high > WIDE * low
    way, turned = 0.5, turn % 2 == 1 if wide else turn % 4 == 3
    if math.isfinite(above) and below > 0 and not (turned and wide):
        meet = (dual.loss(low) - dual.loss(high)) / (above - below) - limit
        aim = budget * (1.0 - close / 2.0)  # below the budget, where the search may end
        power = math.log(above / aim) / math.log(above / below)
        way = math.log(max(meet / low, 1.0)) / math.log(high / low) if turned else power
    return low * (high / low) ** min(max(way, 1e-3), 1.0 - 1e-3)


def _power_law(dual: Dual, budget: float) -> float:
    """Return the ratio to the smallest gamma at which a power law through the smallest two spends the budget; or 0."""
    (low, most), (high, less) = sorted((excess, answer.cost) for excess, answer in dual.known.items())[:2]
    if not 0.0 < less < most:
        return 0.0
    return (most / budget) ** (math.log(high / low) / math.log(most / less))


LEAST_SHARE = 0.1
LARGEST = 1e300
"""A gamma at which nothing moves."""
NETWORK_CLOSE = 0.01
"""How close the search for a network's gamma comes, much closer than its bound is to the truth."""
SMALL_LOSS = 1e-3
"""Below this, a mean loss is too small for a tolerance to be measured by."""
Proven = tuple[float, float, float | None]
"""A bound, the gamma at which it was found, and the tolerance of a search, if there was one."""


@dataclass(frozen=True)
class ExpectedLoss(Quantity):
    """The mean of the loss that the model was trained with, or of another one."""

    metric = "loss"
    noun = "expected loss"
    simple = "E[loss] + L_z radius"
    largest = math.inf
    has_slopes = True

    def by_margins(self, task: Task) -> bool:
        return task.linear(task.initial()[None]) is None and margins_of(task, task.initial(), 1) is not None

    def rows(
        self, means: AskMeans, radii: Sequence[float], question: Question, achieved: Reach
    ) -> tuple[float, float, list[Certificate]]:
        clean, rest = means(None, [{}]).value[0], means(AtRest(question.norm, question.dtype), [{}]).value[0]
        simple = _simple(means, radii, question, rest)
        if question.power == 1:
            return clean, rest, _of_order_one(means, radii, question, simple)
        if question.finite_above is not None:
            return clean, rest, _tight(means, radii, question, question.finite_above, clean, rest, simple)
        proven = _of_network(means, radii, question, clean, rest)
        return (
            clean,
            rest,
            [
                Certificate(radius, value, gamma, cruder, achieved(radius), tolerance)
                for radius, (value, gamma, tolerance), cruder in zip(radii, proven, simple, strict=True)
            ],
        )

    def inquiry(self, certificates: Certificates, row: Certificate) -> Inquiry:
        """By duality or by the slope: the smaller bound, unless only one of them is proven."""
        equally = certificates.simple_proven == certificates.proven
        if row.radius == 0 or (row.simple <= row.value if equally else certificates.simple_proven):
            at_rest = AtRest(certificates.norm, certificates.dtype)
            return Inquiry(at_rest, {}, math.inf, float(certificates.L_z * row.radius) if row.radius > 0 else 0.0)
        kind = UpperBound if row.tolerance is None else SearchedSurrogate
        report = kind(certificates.norm, dtype=certificates.dtype)
        setting = setting_of(row.gamma, float(certificates.L_zz), row.tolerance)
        return Inquiry(report, setting, row.gamma, row.gamma * row.radius**2)

    def most(self, asked: Asked, domain: Domain, certificates: Certificates, gamma: float) -> float:
        return largest_surrogate(asked.task, asked.params, domain, certificates.L_z, gamma, certificates.norm)


@dataclass(frozen=True)
class ErrorRate(Quantity):
    """The share of examples for which some other class has at least the label's output.

    phi_gamma is at most ``max(0, 1 - gamma d^power)``, where d is the distance to the nearest error.
    """

    metric = "error"
    noun = "error rate"
    simple = "1"
    largest = 1.0
    has_slopes = False

    def missing(self, task: Task, num_classes: int | None) -> str | None:
        known = not self.by_margins(task) or leads_of(task, task.initial(), 1) is not None
        if num_classes is not None and known:
            return None
        return (
            "needs a linear classifier or one of known layers, such as wafl.models.lipschitz(clients); a module of "
            "your own may say which Lipschitz constant it has: model.lipschitz = 1.0"
        )

    def by_margins(self, task: Task) -> bool:
        return task.linear(task.initial()[None]) is None

    def rows(
        self, means: AskMeans, radii: Sequence[float], question: Question, achieved: Reach
    ) -> tuple[float, float, list[Certificate]]:
        """Exact for linear models at every gamma, but for rounding."""
        power = question.power
        report = ErrorSurrogate(question.norm, power, label_cost=question.label_cost, dtype=question.dtype)

        def ask(gammas: Sequence[float]) -> Means:
            return means(report, [{"gamma": gamma} for gamma in gammas])

        clean = ask([LARGEST]).value[0]
        budgets = [radius ** (power / 2.0) for radius in radii]  # the search squares them
        dual = search_dual(ask, budgets, 0.0, 1e-9)
        rows: list[Certificate] = []
        for radius, budget in zip(radii, budgets, strict=True):
            value, gamma = dual.least(budget) if radius > 0 else (clean, math.inf)
            reached = dual.reached(budget) if radius > 0 else clean
            best = None if question.by_margins and radius > 0 else min(reached, 1.0)
            rows.append(Certificate(radius, min(value, 1.0), gamma, 1.0, best))
        return clean, clean, rows

    def inquiry(self, certificates: Certificates, row: Certificate) -> Inquiry:
        gamma = LARGEST if row.radius == 0 else row.gamma
        report = ErrorSurrogate(certificates.norm, dtype=certificates.dtype)
        return Inquiry(report, {"gamma": gamma}, gamma, gamma * row.radius**2)

    def most(self, asked: Asked, domain: Domain, certificates: Certificates, gamma: float) -> float:
        return self.largest


def _simple(means: AskMeans, radii: Sequence[float], question: Question, rest: float) -> list[float]:
    """``E[loss] + L_z radius``: the dual at the gamma at which moves of that slope gain the most."""
    steep = float(question.steep)
    if not question.labels_move or math.isinf(steep):
        return [rest + steep * radius if radius > 0 else rest for radius in radii]
    gammas = [steep if question.power == 1 else steep / (2.0 * radius) for radius in radii if radius > 0]
    report = AtRest(question.norm, question.dtype)
    flipped = iter(means(report, [{"gamma": gamma} for gamma in gammas]).value if gammas else [])
    return [next(flipped) + steep * radius if radius > 0 else rest for radius in radii]


def _of_order_one(
    means: AskMeans, radii: Sequence[float], question: Question, simple: Sequence[float]
) -> list[Certificate]:
    """Beyond its steepest slope the loss gains nothing from distance, and below it everything; labels may still pay."""
    steep = float(question.steep)
    reached = [None if question.finite_above is None else value for value in simple]
    if not question.labels_move or math.isinf(steep):
        rows = zip(radii, simple, reached, strict=True)
        return [Certificate(radius, value, steep, value, best) for radius, value, best in rows]

    def ask(gammas: Sequence[float]) -> Means:
        return means(AtRest(question.norm, question.dtype), [{"gamma": gamma} for gamma in gammas])

    budgets = [math.sqrt(radius) for radius in radii]  # the search squares them
    dual = search_dual(ask, budgets, steep, 1e-9)
    certificates: list[Certificate] = []
    for radius, budget, cruder, best in zip(radii, budgets, simple, reached, strict=True):
        value, gamma = min(dual.least(budget), (cruder, steep)) if radius > 0 else (cruder, math.inf)
        best = best if best is None or radius == 0 else dual.reached(budget)
        certificates.append(Certificate(radius, value, gamma, cruder, best))
    return certificates


def _tight(
    means: AskMeans,
    radii: Sequence[float],
    question: Question,
    limit: float,
    clean: float,
    rest: float,
    simple: Sequence[float],
) -> list[Certificate]:
    """For every gamma: search with what an ascent reaches, then prove the value at the gammas found."""
    report, slope = SearchedSurrogate(question.norm, question.dtype), float(question.steep)
    exact = clean if clean > 0 else 1.0

    def ask(gammas: Sequence[float]) -> Means:
        return means(report, [{"gamma": gamma, "proven": 0.0, "tolerance": question.gap * exact} for gamma in gammas])

    # A closed form costs nothing; where labels change, the cost jumps.
    close = CLOSE if limit > 0 or question.labels_move else min(question.gap / 4.0, 0.01)
    targets = [radius for radius in radii if radius > 0]
    # No move at gamma is longer than L_z / (2 gamma), so each radius's gamma is at most L_z / (2 radius).
    first = sorted({slope / (2.0 * radius * share) for radius in targets for share in (1.0, 2.0)})
    dual = search_dual(ask, radii, limit, close, first if limit == 0 and 0 < slope < math.inf else ())
    settings: list[dict[str, float]] = []
    for radius in targets:
        value, gamma = dual.least(radius)
        # Rounded, so that the last digits of a mean do not decide how a search ends. The gap is relative to what the
        # radius adds to the loss, unless that is very little.
        allowed = rounded(question.gap * max(value - clean, LEAST_SHARE * value), 3)
        settings.append(setting_of(gamma if limit > 0 else rounded(gamma, 6), limit, allowed))
    proven = means(report, settings).value if settings else []
    bounds = [(each["gamma"], value, each["tolerance"]) for each, value in zip(settings, proven, strict=True)]
    rows: list[Certificate] = []
    for radius, cruder in zip(radii, simple, strict=True):
        if radius == 0:
            rows.append(Certificate(radius, rest, math.inf, rest, clean))
            continue
        value, gamma, allowed = min((gamma * radius**2 + phi, gamma, allowed) for gamma, phi, allowed in bounds)
        rows.append(Certificate(radius, value, gamma, cruder, max(dual.reached(radius), clean), allowed))
    return rows


def _of_network(means: AskMeans, radii: Sequence[float], question: Question, clean: float, rest: float) -> list[Proven]:
    """Return the smaller of the bounds by curvature and by margins at each radius.

    An L_zz that is only an estimate or a user's claim counts if there is no bound by margins.
    """
    bounds: list[list[Proven]] = []
    if question.bent.proven or not question.by_margins:
        bounds.append(_by_curvature(means, radii, question, rest))
    if question.by_margins:
        bounds.append(_by_margins(means, radii, question, clean, rest))
    return [min(each, key=lambda proven: proven[0]) for each in zip(*bounds, strict=True)]


def _by_curvature(means: AskMeans, radii: Sequence[float], question: Question, rest: float) -> list[Proven]:
    """For gamma above ``L_zz / 2``, where the inner problem is concave or nearly so."""

    def ask(gammas: Sequence[float]) -> Means:
        report = UpperBound(question.norm, dtype=question.dtype)
        return means(report, [setting_of(gamma, float(question.bent), None) for gamma in gammas])

    dual = search_dual(ask, radii, question.bent / 2.0)
    return [(*dual.least(radius), None) if radius > 0 else (rest, math.inf, None) for radius in radii]


def _by_margins(means: AskMeans, radii: Sequence[float], question: Question, clean: float, rest: float) -> list[Proven]:
    """For every gamma, among them ``L_z / (2 radius)``, at which it is at most ``E[loss] + L_z radius``."""
    report, steep = SearchedSurrogate(question.norm, question.dtype), question.steep
    tolerance = rounded(question.gap * max(clean, SMALL_LOSS), 3)

    def ask(gammas: Sequence[float]) -> Means:
        return means(report, [setting_of(gamma, 0.0, tolerance) for gamma in gammas])

    positive = [radius for radius in radii if radius > 0]
    if not positive or (steep == 0.0 and not question.labels_move):
        return [(rest, math.inf, None if radius == 0 else tolerance) for radius in radii]
    # No move at gamma is longer than L_z / (2 gamma); far smaller gammas than these take far longer to bound.
    first = sorted({steep / (2.0 * each * share) for each in positive for share in (1.0, 2.0)})
    dual = search_dual(ask, positive, 0.0, NETWORK_CLOSE, first if 0.0 < steep < math.inf else ())
    gammas = [*(rounded(dual.least(each)[1], 6) for each in positive), *(steep / (2.0 * each) for each in positive)]
    gammas += [rounded(gamma, 6) for each in positive for gamma in dual.balanced(each)]
    values = ask(gammas).value
    rows: list[Proven] = []
    for radius in radii:
        value, gamma = min((gamma * radius**2 + value, gamma) for gamma, value in zip(gammas, values, strict=True))
        rows.append((value, gamma, tolerance) if radius > 0 else (rest, math.inf, None))
    return rows
