"""Runs clients of other projects against a live stack: `make test-clients`."""
