"""phi_gamma of a linear model from both sides: ``linear_model.py`` is the front, each other file proves a bound."""
