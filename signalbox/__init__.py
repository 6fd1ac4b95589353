"""The front door: command line, settings, a local stack, a client of the public API."""

__version__ = "0.1.0"
