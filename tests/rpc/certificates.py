"""Certificates for tests: one authority, and a file set for each name."""

from pathlib import Path
from typing import Any

import trustme

from signalbox_rpc.interceptors.peer_roles import PeerNames
from signalbox_rpc.transport.tls import TlsConfig


def tls_settings(tls: TlsConfig) -> dict[str, Any]:
    """Returns the settings of a service that has the certificates."""
    files = {f"tls_{name}": getattr(tls, name) for name in ("cert", "key", "ca", "client_ca")}
    peers = (f"{role}={one}" for role, names in tls.peer_names.by_role.items() for one in names)
    return {**files, "allow_peer_names": ",".join(peers), "insecure": tls.insecure}


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ca = trustme.CA()
        self.file = str(folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.file)

    @property
    def key_pem(self) -> bytes:
        """Its private key, for certificates that `issue` does not make."""
        return self._ca.private_key_pem.bytes()

    def issue(self, *names: str, file_name: str = "") -> tuple[str, str]:
        """Writes, or replaces, a certificate and its key; returns their paths."""
        stem = self._folder / (file_name or names[0])
        issued = self._ca.issue_cert(*names)
        issued.private_key_pem.write_to_path(f"{stem}.key")
        Path(f"{stem}.pem").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        return f"{stem}.pem", f"{stem}.key"

    def member(self, *names: str, peer_names: str = "") -> TlsConfig:
        """What a service of these names is given under mTLS."""
        cert, key = self.issue(*names)
        return TlsConfig(
            cert=cert,
            key=key,
            ca=self.file,
            client_ca=self.file,
            peer_names=PeerNames.parse(peer_names),
        )
