"""Compute on a GPU: precision, and kernels that replace several layers.

The ``*_kernel.py`` files use Triton and are imported only where Triton is installed.
"""
