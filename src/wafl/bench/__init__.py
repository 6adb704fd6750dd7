"""Speed against others on this machine: the same work, batches and start for all, each in a process of its own."""
