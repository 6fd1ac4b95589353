"""Reads settings from flags, environment variables and a YAML file.

A flag takes precedence over the environment (SIGNALBOX_HTTP_PORT for --http-port), which takes
precedence over the file (`http_port:`), then the default. A setting is one field in the `config.py`
of its service, or in `signalbox_rpc.settings` if several services have it.
"""
