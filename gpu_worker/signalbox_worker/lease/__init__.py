"""Steps of a lease: repeated ids, launching, and partial failures."""
