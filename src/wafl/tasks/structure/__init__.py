"""Recognize models with known layers: chains of plain layers with explicit derivatives.

All results here must equal the results of the plain model (tests/tasks).
"""
