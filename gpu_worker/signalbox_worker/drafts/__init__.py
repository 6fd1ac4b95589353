"""Drafts: tokens that a worker expects behind a sequence's last one, and where they come from."""
