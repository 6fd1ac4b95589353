"""Blocks of KV that one worker exports and another reads, from CPU pool to CPU pool."""
