"""The disk tier: KV blocks in files that outlive the worker."""
