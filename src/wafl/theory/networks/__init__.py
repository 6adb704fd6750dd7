"""What is proven of a network: its margins along a distance, and where its activations can go.

Used by ``certificates/quantities.py``.
"""
