"""vLLM's engine protocol, by which gateways that tokenise by themselves use engines."""
