"""Our own experiments, each with a registration in ``experiments/registered/`` that was committed before it ran."""
