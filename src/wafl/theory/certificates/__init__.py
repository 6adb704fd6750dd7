"""Upper bounds on the worst loss inside the ball: found, shown, and carried over from examples to distributions.

``certify.py`` is the front door.
"""
