"""A method is an adversary, client weights, a server and a local step; the named methods are presets of these four.

A preset is a dataclass that inherits the options of its parts, so each option is written once, where it is used. The
experiment file, the command line and the schema are made from the same fields (:func:`wafl.core.options.options_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Generic, ParamSpec, Protocol

from wafl.adversaries import (
    Adversary,
    Affine,
    BoundedAscent,
    Calibrated,
    Invariant,
    ProjectedAscent,
    Resilient,
    SimpleRepresentation,
    Sinkhorn,
    Trades,
    Wasserstein,
)
from wafl.algorithms.choices import About, Served, Stepped, Weighted
from wafl.algorithms.local import LocalStep, sgd
from wafl.algorithms.local.control_variates import SCAFFOLD as SCAFFOLD_OPTIONS
from wafl.algorithms.local.gradient_control import ScaffPD as ScaffPDOptions
from wafl.algorithms.local.prox import FedProx as FedProxOptions
from wafl.algorithms.servers import Optimizer, Server, averaging
from wafl.algorithms.servers.adam import FedAdam as FedAdamOptions
from wafl.algorithms.servers.masked import FedGMA as FedGMAOptions
from wafl.algorithms.servers.momentum import FedAvgM as FedAvgMOptions
from wafl.algorithms.servers.yogi import FedYogi as FedYogiOptions
from wafl.core.bounds import Box, within
from wafl.core.options import Option, check_options, options_of, plain_signature, unknown_option, with_arguments
from wafl.weights import (
    KL,
    ClientWeights,
    Learned,
    QFair,
    RiskVariance,
    Slack,
    Tilted,
    agnostic,
    by_examples,
    group_dro,
    snapshot,
)  # fmt: skip
from wafl.weights import CVaR as CVaRWeights
from wafl.weights.learned import Climb, Evenness

P = ParamSpec("P")
AVERAGING, DESCENT = averaging(), sgd()
PARTS = ("client_weights", "server", "local")
"""The parts of a method that can be replaced as a whole."""


@dataclass(frozen=True)
class Method:
    """Any adversary with any client weights, any server and any local step.

    Args:
        name: what results call the method.
        adversary: moves each example before the gradient is taken (:mod:`wafl.adversaries`); None moves none.
        client_weights: where the ball is centered (:mod:`wafl.weights`).
        server: what becomes of the clients' models (:mod:`wafl.servers`); an optimizer is given their mean.
        local: what clients do with a gradient (:mod:`wafl.local`).

    >>> import wafl
    >>> wafl.Method("mine", wafl.adversaries.wasserstein(gamma=0.5), wafl.weights.snapshot(0.01)).name
    'mine'
    """

    name: str
    adversary: Adversary | None
    client_weights: ClientWeights
    server: Server = AVERAGING
    local: LocalStep = DESCENT

    def __post_init__(self) -> None:
        if isinstance(self.server, Optimizer):
            object.__setattr__(self, "server", averaging(self.server))
        kinds: tuple[tuple[str, Any, str], ...] = (
            ("client_weights", ClientWeights, "use wafl.weights.fixed([...]), uniform() or by_examples()"),
            ("server", Server, "use one of wafl.servers, such as adam(0.01)"),
            ("local", LocalStep, "use one of wafl.local, such as prox(0.1)"),
        )
        for slot, kind, remedy in kinds:
            value = getattr(self, slot)
            if isinstance(value, type) or not isinstance(value, kind):
                raise TypeError(f"{slot}={value!r} does not implement {kind.__name__}: {remedy}, or write your own")
        if self.adversary is not None and not callable(self.adversary):
            raise TypeError(f"adversary={self.adversary!r} cannot be called: use one of wafl.adversaries, or None")

    def options(self) -> list[str]:
        """What :func:`wafl.sweep` may vary: the options of the method's parts, and the parts themselves."""
        return list(dict.fromkeys([*self._owners(), *PARTS]))

    def with_options(self, **changes: Any) -> Method:
        """The same method with other parts, or other options of its parts.

        Args:
            changes: the new values, by the names that :meth:`options` lists; options apply to the new parts.
        """
        method = replace(self, **{name: value for name, value in changes.items() if name in PARTS})
        owners = method._owners()
        grouped: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            if name in PARTS:
                continue
            if name not in owners:
                raise ValueError(f"{self.name} has no option {name!r}; it has: {', '.join(method.options())}")
            slot, own_name = owners[name]
            grouped.setdefault(slot, {})[own_name] = value
        changed = {slot: _changed(method._part(slot), options) for slot, options in grouped.items()}
        if "optimizer" in changed:
            server = changed.get("server", method.server)
            changed["server"] = replace(server, optimizer=changed.pop("optimizer"))
        return replace(method, **changed)

    def declared(self) -> dict[str, tuple[Option, Any]]:
        """What each option of the method's parts declares about itself, and its value."""
        found: dict[str, tuple[Option, Any]] = {}
        for name, (slot, own_name) in self._owners().items():
            owner = self._part(slot)
            try:
                found[name] = replace(options_of(type(owner))[own_name], name=name), getattr(owner, own_name)
            except NameError:  # your own part, whose annotations name what only its function knows
                continue
        return found

    def within(self, declared: Box | None) -> Method:
        """The same method on data that declare this box, which is where its adversary stays by default.

        Args:
            declared: the bounds of the data, if they have any.
        """
        return replace(self, adversary=within(self.adversary, declared))

    def _part(self, slot: str) -> Any:
        return getattr(self.server, "optimizer", None) if slot == "optimizer" else getattr(self, slot)

    def _owners(self) -> dict[str, tuple[str, str]]:
        """For each option, by name: the part that has it, and what the part calls it."""
        found: dict[str, tuple[str, str]] = {}
        for slot in ("adversary", "local", "optimizer", "server"):
            owner = self._part(slot)
            for field in fields(owner) if is_dataclass(owner) else ():
                if field.name != "optimizer":
                    found.setdefault(field.name, (slot, field.name))
        for name in _limited(self.client_weights):
            public = "weights_step" if name == "step_size" else name
            found[f"weights_{name}" if public in found else public] = ("client_weights", name)
        return found


def _limited(rule: ClientWeights) -> list[str]:
    """The options of a rule for the client weights that have a range, and so can be swept."""
    try:
        return [name for name, option in options_of(type(rule)).items() if option.limits is not None]
    except (TypeError, NameError):  # your own rule: not a dataclass, or with annotations that only its function knows
        return ["step_size"] if isinstance(rule, Learned) else []


def _changed(owner: Any, options: dict[str, Any]) -> Any:
    """A part with other options; it may have its own rules for them, as :meth:`Wasserstein.changed` does."""
    own = getattr(owner, "changed", None)
    return replace(owner, **options) if own is None else own(**options)


class Options(Protocol):
    """A dataclass of a preset's options."""

    about: ClassVar[About]

    def parts(self) -> dict[str, Any]:
        """The parts of the method that the preset decides, by their names in :class:`Method`."""
        ...


class Preset(Generic[P]):
    """A named method: called with its options, it gives a :class:`Method`.

    Its signature and the ``Args`` of its docstring are made from the fields of the options.
    """

    def __init__(self, options: Any) -> None:
        self.options: type[Options] = options
        self.__name__ = self.__qualname__ = options.__name__
        self.__doc__ = with_arguments(options.__doc__, options)
        self.__signature__ = plain_signature(options).replace(return_annotation=Method)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Method:
        for name in kwargs:
            if name not in self.__signature__.parameters:
                raise TypeError(self._no_option(name))
        options = self.options(*args, **kwargs)
        chosen = {slot: value for slot in PARTS if (value := getattr(options, slot, None)) is not None}
        usual: dict[str, Any] = {"adversary": None, "client_weights": by_examples()}
        return Method(self.__name__, **{**usual, **chosen, **options.parts()})

    def _no_option(self, name: str) -> str:
        why = self.options.about.lacks.get(name)
        if why:
            return f"{self.__name__} has no option {name!r}: {why}"
        return unknown_option(self.__name__, name, self.__signature__.parameters)

    def __repr__(self) -> str:
        return f"wafl.{self.__name__}{self.__signature__}"


def preset(options: Callable[P, Options]) -> Preset[P]:
    """The preset of a dataclass of options, as a decorator that keeps their types."""
    return Preset(options)


@preset
@dataclass(frozen=True)
class FedAvg(Weighted, Served, Stepped):
    """Federated averaging: no adversary, and clients weighted by their examples.

    McMahan et al., "Communication-efficient learning of deep networks from decentralized data" (AISTATS 2017).
    """

    about: ClassVar = About(
        'McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017',
        r"\min_\theta \sum_i \lambda_i f_i(\theta), \qquad \theta \leftarrow \frac{\sum_{i \in S} \lambda_i "
        r"\theta_i}{\sum_{i \in S} \lambda_i}",
        "As the baseline, and if test data look like the training data of all clients together.",
    )


@preset
@dataclass(frozen=True)
class WAFL(Wasserstein, Weighted, Served, Stepped):
    """Wasserstein-robust federated learning: FedAvg on ``phi_gamma`` (see :class:`wafl.adversaries.Wasserstein`).

    If you give neither gamma nor radius, gamma is 0.5, the paper's choice for MNIST.
    """

    about: ClassVar = About(
        'Nguyen et al., "On the generalization of Wasserstein robust federated learning", 2022',
        r"\min_\theta \sum_i \lambda_i \, \mathbb{E}_{z \sim P_i} \Big[ \sup_{z'} \; \ell(\theta, z') - "
        r"\gamma \, d(z', z)^p \Big]",
        "If test data may shift in any direction, in a geometry that you choose by the norm, and if you want "
        "certificates.",
    )


@preset
@dataclass(frozen=True)
class SinkhornDRO(Sinkhorn, Weighted, Served, Stepped):
    """WAFL with a Sinkhorn ball: the worst case is spread out (see :class:`wafl.adversaries.Sinkhorn`)."""

    about: ClassVar = About(
        'Wang, Gao and Xie, "Sinkhorn distributionally robust optimization", Operations Research 2025, on every client',
        r"\min_\theta \sum_i \lambda_i \, \mathbb{E}_{P_i} \Big[ \gamma \varepsilon \log \mathbb{E}_{\delta \sim "
        r"N(0, \sigma^2 I)} \, e^{\ell(\theta, (x + \delta, y)) / (\gamma \varepsilon)} \Big], \qquad "
        r"\varepsilon = 2 \sigma^2",
        "As WAFL, if test data may shift to anywhere in a region and not to its worst point alone.",
    )


@preset
@dataclass(frozen=True)
class ResilientWAFL(Resilient, Weighted, Served, Stepped):
    """WAFL that leaves out examples that no model explains (see :class:`wafl.adversaries.Resilient`)."""

    about: ClassVar = About(
        'After Wang et al., "Distributionally robust federated learning with outlier resilience", 2025; the sign of '
        "the reweighting is ours",
        r"\min_\theta \sum_i \lambda_i \min_{w} \; \mathbb{E}_{w} \big[ \phi_\gamma(\theta, z) \big] + \tau \, "
        r"\mathrm{KL}(w \,\|\, P_i), \qquad w(z) \propto e^{-\phi_\gamma(\theta, z) / \tau}",
        "As WAFL, if some of the training examples are garbage: mislabeled, misread, or not of any class.",
    )


@preset
@dataclass(frozen=True)
class FedPGM(ProjectedAscent, Weighted, Served, Stepped):
    """FedAvg with adversarial training by projected gradient ascent (see :class:`wafl.adversaries.ProjectedAscent`)."""

    about: ClassVar = About(
        'Madry et al., "Towards deep learning models resistant to adversarial attacks", ICLR 2018, on every client',
        r"\min_\theta \sum_i \lambda_i \, \mathbb{E}_{z \sim P_i} \Big[ \max_{\|\delta\| \le \epsilon} "
        r"\ell(\theta, (x + \delta, y)) \Big]",
        "Against an attack that may move every example by up to a known epsilon.",
    )


@preset
@dataclass(frozen=True)
class FedFGSM(BoundedAscent, Weighted, Served, Stepped):
    """FedAvg with adversarial training by one gradient step (see :class:`wafl.adversaries.BoundedAscent`)."""

    about: ClassVar = About(
        'Goodfellow, Shlens and Szegedy, "Explaining and harnessing adversarial examples", ICLR 2015, on every client',
        r"x \leftarrow x + \epsilon \, \mathrm{sign} \, \nabla_x \ell(\theta, (x, y))",
        "As a cheap FedPGM: one gradient per example.",
    )


@preset
@dataclass(frozen=True)
class FedRobust(Affine, Weighted, Served, Stepped):
    """FedAvg against an affine shift of each client's inputs (see :class:`wafl.adversaries.Affine`)."""

    about: ClassVar = About(
        'Reisizadeh et al., "Robust federated learning: the case of affine distribution shifts", NeurIPS 2020',
        r"\min_\theta \sum_i \lambda_i \max_{A_i, b_i} \; \mathbb{E}_{P_i} \big[ \ell(\theta, (A_i x + b_i, "
        r"y)) \big] - c \, \big( \|A_i - I\|^2 + \|b_i\|^2 \big)",
        "If clients differ by affine maps of their inputs, such as instruments with other gains and offsets.",
        lacks={
            "space": "its map would also scale the gradient of the layers before that one. Give it the layers behind "
            "as the model and that layer's outputs as the examples, or use WAFL, FedPGM or FedFGSM, which have space"
        },
    )


@preset
@dataclass(frozen=True)
class AFL(Served, Stepped):
    """Agnostic federated learning: the worst mixture of the clients; all of them take one step per round."""

    about: ClassVar = About(
        'Mohri, Sivek and Suresh, "Agnostic federated learning", ICML 2019',
        r"\min_\theta \max_{\lambda \in \Delta} \sum_i \lambda_i f_i(\theta), \qquad \lambda \leftarrow "
        r"\mathrm{proj}_\Delta (\lambda + \eta f(\theta))",
        "For the worst mixture of a few clients that can all answer every round.",
    )

    weights_step: Climb = 0.1

    def __post_init__(self) -> None:
        check_options(self)

    def parts(self) -> dict[str, Any]:
        return {"client_weights": agnostic(self.weights_step)}


@preset
@dataclass(frozen=True)
class DRFA(Served, Stepped):
    """Distributionally robust federated averaging: AFL with local steps and sampling."""

    about: ClassVar = About(
        'Deng, Kamani and Mahdavi, "Distributionally robust federated averaging", NeurIPS 2020',
        r"\min_\theta \max_{\lambda \in \Delta} \sum_i \lambda_i f_i(\theta) - \tfrac{c}{2} \big\| \lambda - "
        r"\tfrac{1}{m} \big\|^2",
        "For the worst mixture of many clients: it samples, and takes local steps. With prox (c above) it is "
        "DRFA-Prox.",
    )

    weights_step: Climb = 0.01
    prox: Evenness = 0.0

    def __post_init__(self) -> None:
        check_options(self)

    def parts(self) -> dict[str, Any]:
        return {"client_weights": snapshot(self.weights_step, self.prox)}


@preset
@dataclass(frozen=True)
class CVaR(CVaRWeights, Served, Stepped):
    """FedAvg on the mean loss of the worst clients (see :class:`wafl.weights.CVaR`)."""

    about: ClassVar = About(
        'Pillutla et al., "Federated learning with superquantile aggregation for heterogeneous data", '
        "Machine Learning 2024",
        r"\min_\theta \max_{\lambda} \Big\{ \sum_i \lambda_i f_i(\theta) : 0 \le \lambda_i \le \frac{p_i}{1 - "
        r"\alpha}, \; \sum_i \lambda_i = 1 \Big\}",
        "If the worst tenth of the clients matters, not the single worst, which may be noise.",
    )


@preset
@dataclass(frozen=True)
class FGDRO(KL, Served, Stepped):
    """Group DRO over the clients with a KL penalty, or within a KL ball (see :class:`wafl.weights.KL`)."""

    about: ClassVar = About(
        'Guo and Yang, "Communication-efficient federated group distributionally robust optimization", NeurIPS 2024',
        r"\min_\theta \max_{\lambda \in \Delta} \sum_i \lambda_i f_i(\theta) - \tau \, \mathrm{KL}(\lambda "
        r"\,\|\, p), \qquad \lambda_i \propto p_i \, e^{f_i(\theta) / \tau}",
        "For a smooth compromise between the mean and the worst client, by a temperature or a radius.",
    )


@preset
@dataclass(frozen=True)
class QFFL(QFair, Served, Stepped):
    """Fair federated learning: losses to the power q + 1 (see :class:`wafl.weights.QFair`)."""

    about: ClassVar = About(
        'Li, Sanjabi, Beirami and Smith, "Fair resource allocation in federated learning", ICLR 2020',
        r"\min_\theta \sum_i \frac{p_i}{q + 1} f_i(\theta)^{q + 1}",
        "If clients should be served alike, with a step that needs no tuning when q changes.",
    )


@preset
@dataclass(frozen=True)
class TERM(Tilted, Served, Stepped):
    """Tilted empirical risk minimization over the clients (see :class:`wafl.weights.Tilted`)."""

    about: ClassVar = About(
        'Li, Beirami, Sanjabi and Smith, "Tilted empirical risk minimization", ICLR 2021',
        r"\min_\theta \frac{1}{t} \log \sum_i p_i \, e^{t f_i(\theta)}",
        "For fairness with t above 0, and against clients with wrong data with t below 0.",
    )


@preset
@dataclass(frozen=True)
class TRADES(Trades, Weighted, Served, Stepped):
    """FedAvg with a price for outputs that change in a ball (see :class:`wafl.adversaries.Trades`)."""

    about: ClassVar = About(
        'Zhang et al., "Theoretically principled trade-off between robustness and accuracy", ICML 2019',
        r"\min_\theta \sum_i \lambda_i \, \mathbb{E}_{P_i} \Big[ \ell(\theta, (x, y)) + \beta \max_{\|\delta\| \le "
        r"\epsilon} \mathrm{KL} \big( p_\theta(x) \,\|\, p_\theta(x + \delta) \big) \Big]",
        "Against an attack of a known epsilon, if accuracy without an attack matters too.",
    )


@preset
@dataclass(frozen=True)
class CalFAT(Calibrated, Weighted, Served, Stepped):
    """Adversarial training of clients with different classes (see :class:`wafl.adversaries.Calibrated`)."""

    about: ClassVar = About(
        'Chen et al., "CalFAT: Calibrated federated adversarial training with label skewness", NeurIPS 2022',
        r"\min_\theta \sum_i \lambda_i \, \mathbb{E}_{P_i} \Big[ -\log \frac{\pi_{iy} \, e^{s_y(x + \delta)}}"
        r"{\sum_c \pi_{ic} \, e^{s_c(x + \delta)}} \Big], \qquad \pi_{ic} = \frac{n_{ic}}{n_i}",
        "If clients have different classes and adversarial training is unstable.",
    )


@preset
@dataclass(frozen=True)
class IRM(Invariant, Weighted, Served, Stepped):
    """FedAvg with a price for outputs that a client would scale (see :class:`wafl.adversaries.Invariant`)."""

    about: ClassVar = About(
        'Arjovsky et al., "Invariant risk minimization", 2019, IRMv1 with clients as environments',
        r"\min_\theta \sum_i \lambda_i \Big( f_i(\theta) + c \, \Big| \frac{d}{dw} f_i(w \cdot \theta) "
        r"\Big|_{w = 1}^2 \Big)",
        "If clients are domains, and a feature that predicts well in each of them may mislead in a new one.",
    )


@preset
@dataclass(frozen=True)
class FedSR(SimpleRepresentation, Weighted, Served, Stepped):
    """FedAvg with a price for representations that are long or tell more than the class.

    See :class:`wafl.adversaries.SimpleRepresentation`.
    """

    about: ClassVar = About(
        'Nguyen, Torr and Lim, "FedSR: A simple and effective domain generalization method for federated learning", '
        "NeurIPS 2022, with one spread for all representations",
        r"\min_\theta \sum_i \lambda_i \min_{r_i} \mathbb{E}_{P_i} \, \mathbb{E}_{z \sim N(h_\theta(x), \sigma^2 I)} "
        r"\Big[ \ell(\theta, (z, y)) + a \|z\|^2 + b \log \frac{p_\theta(z | x)}{r_i(z | y)} \Big], \qquad "
        r"r_i(z | y) = N(m_{iy}, s_{iy}^2)",
        "If clients are domains, a new domain is to come, and the model has a layer worth calling a representation "
        "(`space`).",
    )


@preset
@dataclass(frozen=True)
class SFAT(Slack, ProjectedAscent, Served, Stepped):
    """FedPGM whose clients with small adversarial losses count more (see :class:`wafl.weights.Slack`)."""

    about: ClassVar = About(
        'Zhu et al., "Combating exacerbated heterogeneity for robust models in federated learning", ICLR 2023',
        r"\lambda_i \propto p_i \, (1 + \alpha) \text{ if } f_i \text{ is among the smallest of the cohort, and } "
        r"p_i \, (1 - \alpha) \text{ otherwise}",
        "If adversarial training of clients with different labels is unstable.",
    )

    def __post_init__(self) -> None:
        ProjectedAscent.__post_init__(self)
        Slack.__post_init__(self)


@preset
@dataclass(frozen=True)
class GroupDRO(Served, Stepped):
    """The worst mixture of the clients, by multiplicative steps (see :class:`wafl.weights.Group`)."""

    about: ClassVar = About(
        'Sagawa et al., "Distributionally robust neural networks for group shifts", ICLR 2020, with clients as groups',
        r"\lambda_i \leftarrow \lambda_i \, e^{\eta f_i(\theta)}, \text{ scaled to sum to 1}",
        "As AFL, with local steps and sampling; weights never vanish.",
    )

    weights_step: Climb = 0.01

    def __post_init__(self) -> None:
        check_options(self)

    def parts(self) -> dict[str, Any]:
        return {"client_weights": group_dro(self.weights_step)}


@preset
@dataclass(frozen=True)
class REx(RiskVariance, Served, Stepped):
    """FedAvg plus a price for the variance of the clients' losses (see :class:`wafl.weights.RiskVariance`)."""

    about: ClassVar = About(
        'Krueger et al., "Out-of-distribution generalization via risk extrapolation", ICML 2021, over clients',
        r"\min_\theta \sum_i p_i f_i(\theta) + \beta \sum_i p_i \Big( f_i(\theta) - \sum_j p_j f_j(\theta) \Big)^2",
        "If clients are domains and a new domain is to come that may differ more than they do.",
    )


ScaffPD = preset(ScaffPDOptions)
FedGMA = preset(FedGMAOptions)
FedProx = preset(FedProxOptions)
SCAFFOLD = preset(SCAFFOLD_OPTIONS)
FedAvgM = preset(FedAvgMOptions)
FedAdam = preset(FedAdamOptions)
FedYogi = preset(FedYogiOptions)

METHODS: dict[str, Preset[...]] = {
    method.__name__: method
    for method in (
        WAFL, FedAvg, SinkhornDRO, ResilientWAFL, FedPGM, FedFGSM, FedRobust, AFL, DRFA, CVaR, FGDRO, QFFL, TERM,
        ScaffPD, TRADES, CalFAT, SFAT, GroupDRO, IRM, REx, FedSR, FedGMA, FedProx, SCAFFOLD, FedAvgM, FedAdam, FedYogi,
    )
}  # fmt: skip


def not_a_method(given: Any) -> str:
    """Why this is no method, in one line with the remedy: a name, or a preset that was not called."""
    name = given.__name__ if isinstance(given, Preset) else given
    meant = [known for known in METHODS if isinstance(name, str) and known.lower() == name.lower()]
    what = f"wafl.{name}, which is not called" if isinstance(given, Preset) else repr(given)
    hint = f"pass wafl.{meant[0]}(), or " if meant else ""
    names = ", ".join(f"wafl.{name}(...)" for name in METHODS)
    return f"unknown method {what}: {hint}use one of {names}, or wafl.Method(...)"
