"""Implement the modes of layers: dropout, running statistics, a layer's output as a space, lanes one by one.

``task.py`` combines them; they do not import each other.
"""
