"""Objectives that add something to the loss: TRADES, CalFAT, IRM, FedSR.

One file each; a new one is a file here and a preset in ``methods/penalties.py``.
"""
