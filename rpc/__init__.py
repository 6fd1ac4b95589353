"""How Signalbox runs gRPC: server, client, errors, packed columns, telemetry. No domain types."""
