"""How a GPU computes: precision, and kernels (``*_kernel.py``, which need Triton) that replace several layers."""
