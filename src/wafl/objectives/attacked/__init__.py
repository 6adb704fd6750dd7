"""Objectives at attacked examples: PGM, FGSM, FedRobust's affine map; attacks on test data are in ``wafl.attacks``."""
