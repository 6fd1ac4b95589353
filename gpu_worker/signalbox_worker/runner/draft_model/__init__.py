"""The draft model of a worker: a small model whose likeliest tokens are drafts for the main one."""
