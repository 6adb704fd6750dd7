"""Define methods that compute client weights from the losses in a round's cohort."""

from wafl.methods.preset import Served, Stepped, preset
from wafl.objectives import ProjectedAscent
from wafl.weights import KL, QFair, RiskVariance, Slack, Tilted
from wafl.weights import CVaR as CVaRWeights


@preset(
    'Pillutla et al., "Federated learning with superquantile aggregation for heterogeneous data", '
    "Machine Learning 2024",
    r"\min_\theta \max_{\lambda} \Big\{ \sum_i \lambda_i f_i(\theta) : 0 \le \lambda_i \le \frac{p_i}{1 - "
    r"\alpha}, \; \sum_i \lambda_i = 1 \Big\}",
    "If the worst tenth of the clients matters, not the single worst, which may be noise.",
)
class CVaR(CVaRWeights, Served, Stepped):
    """FedAvg on the mean loss of the worst clients (see :class:`wafl.weights.CVaR`)."""


@preset(
    'Guo and Yang, "Communication-efficient federated group distributionally robust optimization", NeurIPS 2024',
    r"\min_\theta \max_{\lambda \in \Delta} \sum_i \lambda_i f_i(\theta) - \tau \, \mathrm{KL}(\lambda "
    r"\,\|\, p), \qquad \lambda_i \propto p_i \, e^{f_i(\theta) / \tau}",
    "For a smooth compromise between the mean and the worst client, by a temperature or a radius.",
)
class FGDRO(KL, Served, Stepped):
    """Group DRO over the clients with a KL penalty, or within a KL ball (see :class:`wafl.weights.KL`)."""


@preset(
    'Li, Sanjabi, Beirami and Smith, "Fair resource allocation in federated learning", ICLR 2020',
    r"\min_\theta \sum_i \frac{p_i}{q + 1} f_i(\theta)^{q + 1}",
    "If clients should be served alike, with a step that needs no tuning when q changes.",
)
class QFFL(QFair, Served, Stepped):
    """Fair federated learning: losses to the power q + 1 (see :class:`wafl.weights.QFair`)."""


@preset(
    'Li, Beirami, Sanjabi and Smith, "Tilted empirical risk minimization", ICLR 2021',
    r"\min_\theta \frac{1}{t} \log \sum_i p_i \, e^{t f_i(\theta)}",
    "For fairness with t above 0, and against clients with wrong data with t below 0.",
)
class TERM(Tilted, Served, Stepped):
    """Tilted empirical risk minimization over the clients (see :class:`wafl.weights.Tilted`)."""


@preset(
    'Zhu et al., "Combating exacerbated heterogeneity for robust models in federated learning", ICLR 2023',
    r"\lambda_i \propto p_i \, (1 + \alpha) \text{ if } f_i \text{ is among the smallest of the cohort, and } "
    r"p_i \, (1 - \alpha) \text{ otherwise}",
    "If adversarial training of clients with different labels is unstable.",
)
class SFAT(Slack, ProjectedAscent, Served, Stepped):
    """FedPGM with more weight for clients with small adversarial losses (see :class:`wafl.weights.Slack`)."""


@preset(
    'Krueger et al., "Out-of-distribution generalization via risk extrapolation", ICML 2021, over clients',
    r"\min_\theta \sum_i p_i f_i(\theta) + \beta \sum_i p_i \Big( f_i(\theta) - \sum_j p_j f_j(\theta) \Big)^2",
    "If clients are domains, and the model is for a new domain that may differ more than the clients do.",
)
class REx(RiskVariance, Served, Stepped):
    """FedAvg plus a penalty on the variance of the clients' losses; negative weights become 0.

    See :class:`wafl.weights.RiskVariance`.
    """
