"""Stores of KV blocks that outlive a lease, and the threads that move blocks to and from them."""
