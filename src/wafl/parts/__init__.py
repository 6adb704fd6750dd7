"""Define the base of a method's parts: base classes, messages, the schedule, lengths of updates.

Objectives, weights, servers, local steps and rounds import this folder; it imports none of them.
"""
