"""For operators of Flower: processes, keys and certificates, apps, simulations."""
