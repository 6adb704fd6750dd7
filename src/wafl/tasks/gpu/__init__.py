"""How a GPU computes: precision, and kernels that replace several layers.

The ``*_kernel.py`` files are Triton and are imported only where there is Triton.
"""
