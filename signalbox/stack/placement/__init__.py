"""Ranks of a worker on a cluster that starts them: Ray."""
