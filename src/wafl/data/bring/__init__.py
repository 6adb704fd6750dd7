"""Examples that users bring: arrays, frames, folders, Arrow files, data sets of other libraries.

``arrays.py`` is where all of them end; ``intake.py`` is what a trained model keeps of them.
"""
