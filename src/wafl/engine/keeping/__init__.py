"""Training that survives: checkpoints, journals and signals; later versions must be able to read what is written."""
