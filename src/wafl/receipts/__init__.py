"""Statements about the next client from a few numbers per client, wherever the clients are.

Each calibration client is asked once (``questions.py``) and replies with a few numbers (``reply.py``). Everything that
is stated follows from the replies (``conclusion.py``): on Flower, and in files that sites sign.
"""
