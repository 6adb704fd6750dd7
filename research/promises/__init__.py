"""Promises that came true, or not: ``tasks.py`` says who is who, ``phases.py`` issues and opens."""
