"""Compute phi_gamma of a linear model, example by example, from both sides.

Start with ``linear_model.py``; each of the other modules proves one bound.
"""
