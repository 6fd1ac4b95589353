"""Settings of the tiers of KV blocks beyond the worker's pools: on a disk, and on a server."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from signalbox_rpc.settings.service_settings import SettingsGroup, flag_name
from signalbox_worker.config import GIB, MAX_GIB
from signalbox_worker.kv.store_url import STORES, StoreAddress, store_address

STORE_WRITE_BYTES_PER_S = 256 << 20
"""Half of what a SATA SSD writes, so that reads do not wait behind writes."""
_USUAL_DISK_SPACE = 16.0


def _store_url(url: str | None) -> str | None:
    return None if url is None else store_address(url).url


class DiskConfig(SettingsGroup):
    """The tier of KV blocks on a disk."""

    GROUP: ClassVar[str] = "model and device"

    kv_disk: Path | None = Field(
        None,
        description="folder on a local disk for KV blocks that outlive the worker; only its user"
        " may enter it, as prompts can be computed from them. Several workers may name one"
        " (default: none)",
    )
    kv_disk_space: float | None = Field(
        None,
        ge=0.25,
        le=MAX_GIB,
        allow_inf_nan=False,
        description="GiB that all files in --kv-disk may take together (default: 16)",
    )
    kv_disk_daily_writes: float | None = Field(
        None,
        gt=0,
        le=MAX_GIB,
        allow_inf_nan=False,
        description="GiB that this worker may write to --kv-disk in a day of UTC (default: four"
        " times --kv-disk-space)",
    )

    @property
    def has_disk(self) -> bool:
        return self.kv_disk is not None

    @property
    def kv_disk_bytes(self) -> int:
        return int((self.kv_disk_space or _USUAL_DISK_SPACE) * GIB)

    @property
    def disk_write_bytes_per_day(self) -> int:
        daily = self.kv_disk_daily_writes
        return 4 * self.kv_disk_bytes if daily is None else int(daily * GIB)


class SharedConfig(SettingsGroup):
    """The tier of KV blocks on a server that several hosts share."""

    GROUP: ClassVar[str] = "model and device"

    kv_store: Annotated[str | None, AfterValidator(_store_url)] = Field(
        None,
        description="server for KV blocks that workers on several hosts share:"
        f" {'; '.join(dict.fromkeys(kind.FORMS for kind in STORES.values()))} (default: none)",
    )
    kv_store_key: Path | None = Field(
        None,
        description="file of at least 32 random bytes, for its user alone, that all workers of"
        " --kv-store have: blocks are encrypted there with a key derived from it, and those that"
        " others have written or changed are not used",
    )
    kv_store_password: Path | None = Field(
        None, description="file with the password of --kv-store, for its user alone"
    )

    @property
    def has_server(self) -> bool:
        return self.kv_store is not None


def check_stores(
    disk: DiskConfig, shared: SharedConfig, *, swap_space: float | None, is_trusted: bool
) -> None:
    """Raises ValueError for settings that no worker can have together, with the remedy.

    Args:
        is_trusted: whether the network may see and change what is sent.
    """
    for config, name in ((disk, "kv_disk"), (shared, "kv_store")):
        of_it = {one for one in config.model_fields_set if one.startswith(f"{name}_")}
        if getattr(config, name) is None and of_it:
            raise ValueError(f"{flag_name(min(of_it))} has no effect without {flag_name(name)}")
    if not disk.has_disk and not shared.has_server:
        return
    flag = "--kv-disk" if disk.has_disk else "--kv-store"
    if disk.has_disk and shared.has_server:
        raise ValueError("--kv-disk and --kv-store do not go together; leave one of them out")
    if swap_space == 0:
        raise ValueError(
            f"{flag} takes swap space, through which its blocks pass; raise --swap-space"
        )
    if shared.kv_store is not None:
        _check_address(shared, store_address(shared.kv_store), is_trusted=is_trusted)


def _check_address(shared: SharedConfig, address: StoreAddress, *, is_trusted: bool) -> None:
    if shared.kv_store_password is not None and not address.TAKES_PASSWORD:
        taking = [f"{scheme}://" for scheme, kind in STORES.items() if kind.TAKES_PASSWORD]
        raise ValueError(f"--kv-store-password goes with {', '.join(taking)}; leave it out")
    reason = address.exposure(has_key=shared.kv_store_key is not None)
    if reason is not None and not is_trusted:
        raise ValueError(reason)
