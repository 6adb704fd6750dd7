"""Encode messages between server and nodes: plain values and arrays, checked on arrival.

No code travels.
"""
