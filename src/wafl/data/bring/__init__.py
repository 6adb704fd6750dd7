"""Read examples that users bring: arrays, frames, folders, Arrow files, data sets of other libraries.

All of them end in ``arrays.py``; ``intake.py`` contains the facts that a trained model keeps.
"""
