"""Commands that call a running router, or look at this machine."""
