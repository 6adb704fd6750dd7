"""The paper's figures again: ``experiments.py`` finds them, ``reproduce.py`` makes them, ``draw.py`` draws them."""
