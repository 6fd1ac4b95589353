"""Divides what a model counts by its tensor-parallel ranks; needs no PyTorch."""

from signalbox_worker.config import ModelError


def divided(count: int, what: str, size: int) -> int:
    """Returns a rank's share of `count`. Raises ModelError if there is a remainder."""
    if count % size:
        sizes = ", ".join(str(size) for size in range(1, 65) if count % size == 0)
        raise ModelError(
            f"{what} ({count}) cannot be divided by tensor_parallel_size {size}; it can by {sizes}"
        )
    return count // size


def undivided(reason: str, *, otherwise: str = "") -> ModelError:
    """Returns the refusal of a model that cannot be divided as it was asked for."""
    return ModelError(f"{reason}; use another tensor_parallel_size, such as 1{otherwise}")


def kv_heads_per_rank(num_kv_heads: int, size: int, *, what: str = "num_key_value_heads") -> int:
    """Returns how many K and V heads a rank holds, at least one."""
    if size > num_kv_heads and size % num_kv_heads == 0:
        return 1
    return divided(num_kv_heads, what, size)


def first_kv_head(num_kv_heads: int, size: int, rank: int) -> int:
    """Returns the first K and V head of a rank; ranks share one if there are fewer than ranks."""
    return rank // max(1, size // num_kv_heads) * kv_heads_per_rank(num_kv_heads, size)
