"""A store of KV blocks that workers on several hosts share: Redis or Valkey, or an object store."""
