"""Federated averaging, the baseline: every other method changes one or two of its parts."""

from typing import ClassVar

from wafl.methods.preset import About, Served, Stepped, Weighted, preset


@preset
class FedAvg(Weighted, Served, Stepped):
    """Federated averaging: the loss itself, at examples as they are, and clients weighted by their examples."""

    about: ClassVar = About(
        'McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017',
        r"\min_\theta \sum_i \lambda_i f_i(\theta), \qquad \theta \leftarrow \frac{\sum_{i \in S} \lambda_i "
        r"\theta_i}{\sum_{i \in S} \lambda_i}",
        "As the baseline, and if test data look like the training data of all clients together.",
        place=1,
    )
