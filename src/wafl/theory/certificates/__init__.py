"""Upper bounds on the worst loss inside the ball of examples or distributions; ``certify.py`` is the front door."""
