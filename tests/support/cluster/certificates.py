"""Certificates for a cluster's parts, and kubeconfig files with them."""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_FROM, _UNTIL = timedelta(hours=-1), timedelta(days=7)


class Authority:
    """A certificate authority in a folder: `ca.crt`, and a pair of files for each name."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpuspawner test cluster")])
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        made = self._builder(self._name, self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        made = made.add_extension(usage, critical=True)
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(
        self, file: str, name: str, groups: Sequence[str] = (), addresses: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """Certificate and key of a client of that name and groups, who also serves at `addresses` (IP or name)."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(subject, key.public_key())
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        made = made.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if addresses:
            made = made.add_extension(x509.SubjectAlternativeName([_general(each) for each in addresses]), False)
        certificate, private = self.folder / f"{file}.crt", self.folder / f"{file}.key"
        certificate.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        private.touch(mode=0o600)
        private.write_bytes(_pem(key))
        return certificate, private

    def key(self, file: str) -> tuple[Path, Path]:
        """A key of its own and its public half, such as for service accounts."""
        key = ec.generate_private_key(ec.SECP256R1())
        private, public = self.folder / f"{file}.key", self.folder / f"{file}.pub"
        private.touch(mode=0o600)
        private.write_bytes(_pem(key))
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
        return private, public

    def kubeconfig(self, path: Path, server: str, certificate: Path, key: Path) -> Path:
        """A kubeconfig with everything in it. JSON, which is YAML too."""
        cluster = {"server": server, "certificate-authority-data": _base64(self.certificate)}
        user = {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "gpuspawner", "cluster": cluster}],
            "users": [{"name": "gpuspawner", "user": user}],
            "contexts": [{"name": "gpuspawner", "context": {"cluster": "gpuspawner", "user": "gpuspawner"}}],
            "current-context": "gpuspawner",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(content, indent=1))
        return path

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        made = made.serial_number(x509.random_serial_number())
        return made.not_valid_before(now + _FROM).not_valid_after(now + _UNTIL)


def _general(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
