"""Objectives at examples that an attack has moved: PGM, FGSM, and FedRobust's affine map.

One file per idea; the attacks on test data are in ``wafl.attacks``.
"""
