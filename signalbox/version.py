"""The version of Signalbox, which all services report."""

VERSION = "0.2.0"
