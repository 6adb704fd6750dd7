"""Objectives that add something to the loss: TRADES, CalFAT, IRM, FedSR.

A new one is a class here and a preset in ``methods/penalties.py``.
"""
