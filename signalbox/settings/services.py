"""Names of the commands that run services; it imports nothing, so that a signal is met at once."""

SERVICES = ("serve", "demo", "router", "scheduler", "worker")
