"""See `signalbox.v1.metrics.reader`."""
