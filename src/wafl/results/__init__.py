"""What training gives back, as plain data: a run, its history, and where a training stands between rounds."""
