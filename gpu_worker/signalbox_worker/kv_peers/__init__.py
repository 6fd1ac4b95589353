"""Blocks of KV that one worker lends and another reads, from CPU pool to CPU pool."""
