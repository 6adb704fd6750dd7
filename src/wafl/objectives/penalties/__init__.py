"""Objectives that add to the loss: TRADES, CalFAT, IRM, FedSR; a new one has a preset in ``methods/penalties.py``."""
