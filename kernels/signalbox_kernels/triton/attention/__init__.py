"""Attention over paged K and V: the kernel, the sizes of its tiles, and the join of splits."""
