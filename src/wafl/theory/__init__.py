"""Constants, certificates, bounds and rates: what the ball guarantees, in numbers.

- ``constants.py``: the Lipschitz constants of a model; ``linear.py`` (closed forms), ``layers.py``, ``estimates.py``
- ``certificates.py``: the worst loss inside the ball; ``upper.py``, ``dual.py``, ``mixture.py``
- ``calibration.py``: the radius of a gamma, and the gamma of a radius
- ``bounds.py``, ``rates.py``: the paper's statements, one function each; ``summary.py``: all of them for a run
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
from wafl.theory.certificates import Certificate, Certificates, certify
from wafl.theory.constant import Constant
from wafl.theory.constants import Constants, constants
from wafl.theory.rates import convergence
from wafl.theory.summary import Refusal, Summary, summarize

__all__ = [
    "Bound", "Calibration", "Certificate", "Certificates", "Concentration", "Constant", "Constants", "Refusal",
    "Summary", "calibrate", "certify", "constants", "convergence", "covering_radius", "distance_to_client",
    "distance_to_target", "excess_risk_sandwich", "generalization_to_truth", "robust_generalization", "summarize",
]  # fmt: skip
