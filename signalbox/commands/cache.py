"""`signalbox cache`: what --kv-disk or --kv-store holds, and its removal, also while it serves."""

import argparse
import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from signalbox.client.connection import connection
from signalbox.client.scheduler_client import SchedulerClient, add_address_flag
from signalbox.commands.cached_models.hub_cache import age
from signalbox_rpc.telemetry.printable import printable
from signalbox_worker.files.hub.gguf_file_names import format_bytes

EXAMPLES = """\
examples
  signalbox cache list /var/lib/signalbox/kv                  # by model: blocks, space, last write
  signalbox cache clear /var/lib/signalbox/kv                 # all of them
  signalbox cache clear /var/lib/signalbox/kv --tenant team-a # those of one tenant
  signalbox cache list rediss://kv.example.com                # by model: blocks, space
  signalbox cache clear rediss://kv.example.com --tenant team-a --kv-store-key key
  signalbox cache clear                                       # all that a service has cached
  signalbox cache clear --scheduler HOST:50052 --tenant team-a
Files in a folder that a worker has open are only cleared through its scheduler.
A scheduler that starts again has forgotten the clears that failed: repeat those of a --kv-store.
It learns what workers with --kv-disk have missed from others, once one of them is back.
"""
_OF_SERVERS = ("kv_store_key", "kv_store_password", "insecure")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", metavar="list|clear", choices=("list", "clear"), help="what to do"
    )
    parser.add_argument(
        "place",
        metavar="PLACE",
        nargs="?",
        help="folder of --kv-disk, or URL of --kv-store (default: with clear, memory and stores of"
        " all workers of a running scheduler)",
    )
    parser.add_argument("--tenant", metavar="NAME", help="with clear, whose blocks (default: all)")
    parser.add_argument("--json", action="store_true", help="with list, print one JSON array")
    parser.add_argument(
        "--kv-store-key",
        metavar="FILE",
        type=Path,
        help="with a URL and --tenant, key of the workers, which names tenants there",
    )
    parser.add_argument(
        "--kv-store-password", metavar="FILE", type=Path, help="with a URL, file with the password"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="with a URL, allow a host elsewhere without TLS"
    )
    add_address_flag(parser)


def run(options: dict[str, Any]) -> None:
    """Lists or clears. Raises FolderError, ValueError, OSError, or what a scheduler refuses with.

    Workers that have some of the files in a folder are a ValueError, too.
    """
    is_list, place = options["action"] == "list", options["place"]
    tenant = options["tenant"]
    if is_list and tenant is not None:
        raise ValueError("--tenant has no effect with list; its names are not stored")
    if tenant is not None and not _is_text(tenant):
        raise ValueError("--tenant is no UTF-8 text; give the name as requests have it")
    if not is_list and options["json"]:
        raise ValueError("--json has no effect with clear")
    if place is None:
        _refuse(options, _OF_SERVERS, "without the URL of a server")
        if is_list:
            raise ValueError("list takes a PLACE: the folder of --kv-disk or URL of --kv-store")
        asyncio.run(_clear_service(options))
        return
    if "://" in place:
        _at_server(options, place)
        return
    if not place or not Path(place).exists():
        raise ValueError(
            f"there is no folder {place or repr(place)}; a server is a URL, as --kv-store has it"
        )
    _refuse(options, _OF_SERVERS, "with a folder")
    if is_list:
        _list_folder(Path(place), as_json=options["json"])
    else:
        _clear_folder(Path(place), options["tenant"])


def _is_text(argument: str) -> bool:
    """Says whether an argument is text; bytes that are not UTF-8 arrive as surrogates."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(options: dict[str, Any], names: tuple[str, ...], where: str) -> None:
    if useless := [name for name in names if options[name]]:
        raise ValueError(f"--{useless[0].replace('_', '-')} has no effect {where}")


async def _clear_service(options: dict[str, Any]) -> None:
    async with SchedulerClient(options["address"], connection(options)) as client:
        faults = await client.clear_cache(options["tenant"])
    if not faults:
        raise ValueError(
            "no worker has joined: nothing is cleared yet. Workers with --kv-disk clear it when"
            " they join; for --kv-store repeat it then, or name the URL"
        )
    for worker, fault in faults.items():
        print(f"{worker}: {printable(fault) or 'cleared'}")
    if any(faults.values()):
        raise ValueError(
            "blocks may be left in stores of these workers; repeat it once the store answers"
        )


def _clear_folder(folder: Path, tenant: str | None) -> None:
    from signalbox_worker.kv.disk.stored_models import clear

    num_cleared, num_in_use = clear(folder, tenant)
    print(f"{_sets(num_cleared)} cleared")
    if num_in_use:
        raise ValueError(
            f"{_sets(num_in_use)} of a running worker not cleared; clear them with"
            " `signalbox cache clear --scheduler HOST:PORT`, or stop the worker and repeat. If no"
            " worker runs, these are not files that this user alone may use: delete them"
        )


def _list_folder(folder: Path, *, as_json: bool) -> None:
    from signalbox_worker.kv.disk.stored_models import stored_models

    found = stored_models(folder)
    if as_json:
        print(json.dumps([asdict(one) for one in found]))
        return
    names = [f"{one.model or 'unknown'} ({one.name[:8]})" for one in found]
    width = max(map(len, names), default=0)
    for name, one in zip(names, found, strict=True):
        state = "in use" if one.is_in_use else f"written {age(one.used_at)}"
        print(
            f"{name:<{width}}  {one.num_blocks:>9} blocks  "
            f"{format_bytes(one.num_bytes):>10}  {state}"
        )
    total = format_bytes(sum(one.num_bytes for one in found))
    print(f"{_sets(len(found))}, {total}, in {folder}")


def _at_server(options: dict[str, Any], url: str) -> None:
    from signalbox_worker.kv.shared.stored_groups import StoreAccess

    access = StoreAccess(
        url,
        key=options["kv_store_key"],
        password=options["kv_store_password"],
        is_trusted=options["insecure"],
    )
    if options["action"] == "clear":
        print(f"{access.clear(options['tenant'])} {access.entries} cleared")
        return
    found = access.groups()
    if options["json"]:
        print(json.dumps([one._asdict() for one in found]))
        return
    for one in found:
        size = format_bytes(one.num_bytes)
        print(f"{one.name[:8]}  {one.num_entries:>9} {access.entries}  {size:>10}")
    total = format_bytes(sum(one.num_bytes for one in found))
    print(f"{_sets(len(found))}, {total}")


def _sets(count: int) -> str:
    return f"{count} set{'' if count == 1 else 's'} of blocks"
