"""What needs no knowledge of clients.

- ``task.py``: a model and its loss as pure functions of a flat parameter vector; ``layout.py``: what that vector holds;
  ``losses.py``, ``norms.py``
- ``inputs.py``: the examples of every lane, stored without repetition
- ``random.py``: random draws as pure functions of a key
- ``options.py``, ``checks.py``, ``fitness.py``, ``errors.py``: options and their ranges, what is refused, and how
- ``history.py``, ``files.py``, ``describe.py``, ``extras.py``: records, files, plain settings, optional packages
"""
