"""What operators need of Flower: processes, keys and certificates, apps, simulations."""
