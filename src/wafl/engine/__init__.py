"""Client work as lanes of one batch, and the loop that trains on clients here or anywhere else."""
