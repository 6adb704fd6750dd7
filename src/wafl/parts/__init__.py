"""What the parts of a method are made of: their base classes, messages, the schedule, lengths of updates.

Objectives, weights, servers, local steps and rounds build on it; it knows none of them.
"""
