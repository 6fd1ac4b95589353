"""All settings, which flags, environment variables and a YAML file can give.

A flag takes precedence over the environment (SIGNALBOX_HTTP_PORT for --http-port), which takes
precedence over the file (`http_port:`), then the default. As in vLLM's EngineArgs, a setting is one
field of its service's class. `signalbox.stack.service_configs` makes configuration objects of them.
"""
