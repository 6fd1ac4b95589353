"""See `signalbox.engine`."""
