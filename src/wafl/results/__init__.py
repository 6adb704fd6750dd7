"""What training gives back: a run, its history, and where a training stands between rounds.

Plain data; it knows neither the engine nor a study.
"""
