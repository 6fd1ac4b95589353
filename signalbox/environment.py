"""What names of environment variables begin with. Imports nothing: probes load it too."""

ENV_PREFIX = "SIGNALBOX_"
