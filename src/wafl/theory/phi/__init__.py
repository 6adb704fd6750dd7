"""phi_gamma of a linear model, example by example, from both sides.

``linear_model.py`` is the front; the others each prove one bound.
"""
