"""Provide scikit-learn estimators that minimize the worst expected loss in a ball, and their exact solver.

The names imported here are public.
"""

from wafl.sklearn.estimators import WassersteinClassifier, WassersteinRegressor

__all__ = ["WassersteinClassifier", "WassersteinRegressor"]
