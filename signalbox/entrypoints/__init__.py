"""What programs start with, at vLLM's module paths."""
