"""Bound a network: its margins along a distance, and the range of its activations.

Used by ``certificates/quantities.py``.
"""
