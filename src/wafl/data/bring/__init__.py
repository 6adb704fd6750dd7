"""Examples that users bring; all end in ``arrays.py``, and ``intake.py`` is what a trained model keeps of them."""
