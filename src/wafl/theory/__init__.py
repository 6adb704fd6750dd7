"""Constants, certificates, bounds and rates: what the ball guarantees, in numbers.

- ``constants.py``: the Lipschitz constants of a model; ``linear.py`` (closed forms), ``layers.py``, ``estimates.py``
- ``certificates.py``: the worst loss inside the ball; ``certificate.py``, ``upper.py``, ``dual.py``, ``mixture.py``
- ``phi.py``: phi_gamma of linear models from both sides; ``ball.py``, ``incumbents.py``, ``kept.py``,
  ``simplex.py``, ``lines.py``, ``coordinates.py``, ``regression.py``
- ``sampling.py``: from examples to the distributions that they come from
- ``next_client.py``: clients as a sample of all clients; ``population.py``
- ``calibration.py``: the radius of a gamma, and the gamma of a radius
- ``promise.py``: a certificate as a file, ``statement.py`` in words, ``rounding.py``; ``verify.py`` checks one
- ``audit.py``: how far a site is from a federation, by what ``labels.py`` publishes
- ``bounds.py``, ``rates.py``: the paper's statements, one function each; ``summary.py``: all of them for a run
- ``perturbations.py``: moves of single examples against the ball
"""

from wafl.theory.bound import Bound
from wafl.theory.bounds import (
    Concentration,
    covering_radius,
    distance_to_client,
    distance_to_target,
    excess_risk_sandwich,
    generalization_to_truth,
    robust_generalization,
)
from wafl.theory.calibration import Calibration, calibrate
from wafl.theory.certificate import Certificate, Certificates
from wafl.theory.certificates import certify
from wafl.theory.constant import Constant
from wafl.theory.constants import Constants, constants
from wafl.theory.next_client import NextClient, next_client
from wafl.theory.perturbations import inside_ball
from wafl.theory.rates import convergence
from wafl.theory.summary import Refusal, Summary, summarize

__all__ = [
    "Bound", "Calibration", "Certificate", "Certificates", "Concentration", "Constant", "Constants", "NextClient",
    "Refusal", "Summary", "calibrate", "certify", "constants", "convergence", "covering_radius", "distance_to_client",
    "distance_to_target", "excess_risk_sandwich", "generalization_to_truth", "inside_ball", "next_client",
    "robust_generalization", "summarize",
]  # fmt: skip
