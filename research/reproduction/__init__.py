"""The paper's figures and tables, made again from their experiment files.

``experiments.py`` finds them, ``reproduce.py`` makes them, ``draw.py`` draws them.
"""
