"""Define methods that move client weights up the losses, step by step, to the worst mixture of the clients."""

from wafl.local import GradientControl
from wafl.methods.preset import Served, Stepped, preset
from wafl.weights import Agnostic, Gap, Group, PrimalDual, Snapshot
from wafl.weights.learned import Adjustment, Climb, Evenness, Extrapolation


@preset(
    'Mohri, Sivek and Suresh, "Agnostic federated learning", ICML 2019',
    r"\min_\theta \max_{\lambda \in \Delta} \sum_i \lambda_i f_i(\theta), \qquad \lambda \leftarrow "
    r"\mathrm{proj}_\Delta (\lambda + \eta f(\theta))",
    "For the worst mixture of a few clients that can all answer every round.",
)
class AFL(Served, Stepped, client_weights=Agnostic):
    """Agnostic federated learning: the worst mixture of the clients, with one step of all clients per round."""

    weights_step: Climb = 0.1


@preset(
    'Deng, Kamani and Mahdavi, "Distributionally robust federated averaging", NeurIPS 2020',
    r"\min_\theta \max_{\lambda \in \Delta} \sum_i \lambda_i f_i(\theta) - \tfrac{c}{2} \big\| \lambda - "
    r"\tfrac{1}{m} \big\|^2",
    "For the worst mixture of many clients: it samples, and takes local steps. With prox (c above) it is DRFA-Prox.",
)
class DRFA(Served, Stepped, client_weights=Snapshot):
    """AFL's problem with local steps and sampled clients; the weights ascend the losses of a snapshot."""

    weights_step: Climb = 0.01
    prox: Evenness = 0.0


@preset(
    'Yu et al., "Scaff-PD: Communication efficient fair and robust federated learning", 2307.13381, 2023',
    r"\lambda \leftarrow \arg\max_{\lambda \in \Delta} \, \langle s, \lambda \rangle - \tfrac{c}{2} "
    r"\big\| \lambda - \tfrac{1}{m} \big\|^2 - \tfrac{1}{2 \sigma} \|\lambda - \lambda^t\|^2, \quad "
    r"s = 2 f(\theta^t) - f(\theta^{t - 1}), \quad "
    r"\theta_i \leftarrow \theta_i - \eta \Big( \nabla f_i(\theta_i) - \nabla f_i(\theta^t) "
    r"+ \sum_j \lambda_j \nabla f_j(\theta^t) \Big)",
    "For the worst mixture of clients that can all answer every round, in far fewer rounds than DRFA.",
)
class ScaffPD(Served, client_weights=PrimalDual, local=GradientControl):
    """DRFA's problem, solved by an accelerated primal-dual method with control variates for the local steps."""

    weights_step: Climb = PrimalDual.step_size
    prox: Evenness = PrimalDual.prox
    extrapolation: Extrapolation = PrimalDual.extrapolation


@preset(
    'Sagawa et al., "Distributionally robust neural networks for group shifts", ICLR 2020, with clients as groups',
    r"\lambda_i \leftarrow \lambda_i \, e^{\eta f_i(\theta)}, \text{ scaled to sum to 1}",
    "As AFL, with local steps and sampling; weights never vanish.",
)
class GroupDRO(Served, Stepped, client_weights=Group):
    """The worst mixture of the clients, found by multiplicative steps (see :class:`wafl.weights.Group`)."""

    weights_step: Climb = 0.01


@preset(
    'Zhang et al., "Federated domain generalization with generalization adjustment", CVPR 2023',
    r"\lambda_i \leftarrow \lambda_i + \frac{d}{m} \Big( 1 - \frac{t}{T} \Big) \frac{g_i}{\max_j |g_j|}, \text{ cut "
    r"off at } 0 \text{ and scaled to sum to } 1, \qquad g_i = f_i(\theta) - f_i(\theta_i)",
    "If clients are domains, and the model is for a new domain: clients that averaging harms get more weight.",
)
class FedDGGA(Served, Stepped, client_weights=Gap):
    """FedAvg with more weight for clients if averaging raises their loss (see :class:`wafl.weights.Gap`)."""

    weights_step: Adjustment = 0.2
