"""Network interfaces of this machine and their IPv4 addresses."""

import socket
import struct

_SIOCGIFADDR = 0x8915


def address_of(interface: str) -> str | None:
    """Returns the address of an interface such as eth0; None if there is no such one, or it has
    none."""
    import fcntl  # absent on Windows, where a worker has one host

    request = struct.pack("256s", interface.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def interface_of(host: str) -> str | None:
    """Returns the interface that has the address of a host; None if none has."""
    if host.startswith("127."):
        return "lo"
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return None
    names = (name for _, name in socket.if_nameindex())
    return next((name for name in names if address_of(name) == address), None)
