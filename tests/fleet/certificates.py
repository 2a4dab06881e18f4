"""A CA of our own and certificates that it signs, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_ca(folder: Path, name: str) -> Path:
    """Return the certificate of a new CA; its key is next to it."""
    certificate = folder / f"{name}.pem"
    _openssl(
        *("req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}"),
        # Python 3.13 insists on it.
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        *("-keyout", certificate.with_suffix(".key"), "-out", certificate),
    )
    return certificate


def make_certificate(ca: Path, alternative: str) -> tuple[Path, Path]:
    """Return a certificate for `alternative`, such as IP:127.0.0.1, that `ca` signed, and its key."""
    certificate, key = ca.with_name("engine.pem"), ca.with_name("engine.key")
    request, extensions = ca.with_name("engine.csr"), ca.with_name("engine.ext")
    extensions.write_text(
        f"subjectAltName={alternative}\nbasicConstraints=CA:FALSE\nauthorityKeyIdentifier=keyid\n"
    )
    _openssl("req", "-new", *_KEY, "-subj", "/CN=engine", "-keyout", key, "-out", request)
    _openssl(
        *("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca.with_suffix(".key"), "-CAcreateserial"),
        *("-days", "2", "-extfile", extensions, "-out", certificate),
    )
    return certificate, key


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
