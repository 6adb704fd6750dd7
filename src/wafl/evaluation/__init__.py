"""How good models are on their clients' test data: one run (``evaluate.py``), or many in one pass (``compare.py``)."""
