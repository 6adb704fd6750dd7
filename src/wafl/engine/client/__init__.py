"""What a client does in a round: lines 3 to 8 of Algorithm 1, for many lanes at once.

``local.py`` is the round, ``step.py`` one step; both are pure functions.
"""
