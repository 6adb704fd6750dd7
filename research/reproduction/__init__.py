"""The paper's figures and tables, reproduced from their experiment files.

``experiments.py`` reads the files, ``reproduce.py`` runs them, ``draw.py`` draws figures, ``page.py`` makes tables, and
``command.py`` is the command.
"""
