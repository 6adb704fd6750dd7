"""Define federated averaging, the baseline, and methods with other local steps."""

from wafl.local import SAM, ControlVariates, Prox
from wafl.methods.preset import Served, Stepped, Weighted, preset


@preset(
    'McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017',
    r"\min_\theta \sum_i \lambda_i f_i(\theta), \qquad \theta \leftarrow \frac{\sum_{i \in S} \lambda_i "
    r"\theta_i}{\sum_{i \in S} \lambda_i}",
    "As the baseline, and if test data look like the training data of all clients together.",
)
class FedAvg(Weighted, Served, Stepped):
    """Federated averaging: the plain loss at unmoved examples, with clients weighted by their examples."""


@preset(
    'Li et al., "Federated optimization in heterogeneous networks", MLSys 2020',
    r"\min_{\theta_i} f_i(\theta_i) + \frac{\mu}{2} \|\theta_i - \theta\|^2",
    "If clients take many local steps and drift apart.",
)
class FedProx(Prox, Weighted, Served):
    """FedAvg with a penalty of ``mu / 2 ||params - start||^2`` on the distance from the server's model."""


@preset(
    'Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning", ICML 2020',
    r"\theta_i \leftarrow \theta_i - \eta \, (\nabla f_i(\theta_i) - c_i + c)",
    "If clients have different data, take many local steps, and can keep a vector between rounds.",
)
class SCAFFOLD(ControlVariates, Weighted, Served):
    """FedAvg with control variates, which keep clients with different data from drifting apart between rounds."""


@preset(
    'Qu et al., "Generalized federated learning via sharpness aware minimization", ICML 2022',
    r"\min_\theta \sum_i \lambda_i \max_{\|\delta\| \le \rho} f_i(\theta + \delta), \qquad "
    r"\theta_i \leftarrow \theta_i - \eta \, \nabla f_i \Big( "
    r"\theta_i + \rho \, \frac{\nabla f_i(\theta_i)}{\|\nabla f_i(\theta_i)\|} \Big)",
    "If clients end in sharp minima that differ: flat ones are nearer to each other, and generalize better.",
)
class FedSAM(SAM, Weighted, Served):
    """FedAvg with local steps toward flat minima (see :class:`wafl.local.SAM`)."""
