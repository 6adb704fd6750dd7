"""Speed and memory of calls that users make. Not part of the wheel.

Each script is a module: ``python -m benchmarks.speed --help``. ``claims.py`` measures the claims of the pages.
"""
