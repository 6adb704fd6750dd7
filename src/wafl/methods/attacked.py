"""Define methods that train on attacked examples: bounded moves of each example, or one map per client."""

from wafl.methods.preset import Served, Stepped, Weighted, preset
from wafl.objectives import Affine, BoundedAscent, ProjectedAscent


@preset(
    'Madry et al., "Towards deep learning models resistant to adversarial attacks", ICLR 2018, on every client',
    r"\min_\theta \sum_i \lambda_i \, \mathbb{E}_{z \sim P_i} \Big[ \max_{\|\delta\| \le \epsilon} "
    r"\ell(\theta, (x + \delta, y)) \Big]",
    "Against an attack that may move every example by up to a known epsilon.",
)
class FedPGM(ProjectedAscent, Weighted, Served, Stepped):
    """FedAvg with adversarial training by projected gradient ascent (see :class:`wafl.objectives.ProjectedAscent`)."""


@preset(
    'Goodfellow, Shlens and Szegedy, "Explaining and harnessing adversarial examples", ICLR 2015, on every client',
    r"x \leftarrow x + \epsilon \, \mathrm{sign} \, \nabla_x \ell(\theta, (x, y))",
    "As a cheap FedPGM: one gradient per example.",
)
class FedFGSM(BoundedAscent, Weighted, Served, Stepped):
    """FedAvg with adversarial training by one gradient step (see :class:`wafl.objectives.BoundedAscent`)."""


@preset(
    'Reisizadeh et al., "Robust federated learning: the case of affine distribution shifts", NeurIPS 2020',
    r"\min_\theta \sum_i \lambda_i \max_{A_i, b_i} \; \mathbb{E}_{P_i} \big[ \ell(\theta, (A_i x + b_i, "
    r"y)) \big] - c \, \big( \|A_i - I\|^2 + \|b_i\|^2 \big)",
    "If clients differ by affine maps of their inputs, such as instruments with different gains and offsets.",
    lacks={
        "space": "its map would also scale the gradient of the layers before that one. Give it the layers behind "
        "as the model and that layer's outputs as the examples, or use WAFL, FedPGM or FedFGSM, which have space"
    },
)
class FedRobust(Affine, Weighted, Served, Stepped):
    """FedAvg against an affine shift of each client's inputs (see :class:`wafl.objectives.Affine`)."""
