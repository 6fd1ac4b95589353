"""The MTP layer of a model (multi-token prediction), whose likeliest tokens are drafts."""
