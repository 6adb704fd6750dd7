"""Runs that survive, and that others can repeat."""
