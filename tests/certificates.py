"""Certificates for tests of TLS, made with openssl: good ones, and what may be wrong with one."""

from __future__ import annotations

import subprocess
from pathlib import Path

HOST = "127.0.0.1"
PASSWORD = "s3cr3t"


def certify(directory: Path) -> None:
    """Make a CA (`ca`), a server that it knows by its address, a client, and a `stranger` to it.

    Each has a certificate, `<name>.pem`, and a key, `<name>.key`; `<name>-both.pem` holds both. The stranger
    has signed itself.
    `expired-server.pem` and `expired-client.pem` are the same of the day before yesterday. The client's key
    is also there under a password: `locked.key`, `locked-old.key` and `locked-both.pem`.
    """

    def openssl(words: str) -> None:
        subprocess.run(["openssl", *words.split()], check=True, cwd=directory, stderr=subprocess.DEVNULL)

    def join(key: str, cert: str, both: str) -> None:
        (directory / both).write_text((directory / key).read_text() + (directory / cert).read_text())

    for name in ("ca", "stranger"):
        openssl(
            f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem"
        )
    join("stranger.key", "stranger.pem", "stranger-both.pem")
    (directory / "names").write_text(f"subjectAltName=IP:{HOST},IP:::1")
    for name in ("server", "client"):
        openssl(f"req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr")
        signing = "-CA ca.pem -CAkey ca.key -CAcreateserial -extfile names"
        openssl(f"x509 -req -in {name}.csr {signing} -days 2 -out {name}.pem")
        join(f"{name}.key", f"{name}.pem", f"{name}-both.pem")
        openssl(f"x509 -req -in {name}.csr {signing} -days -1 -out expired.pem")
        join(f"{name}.key", "expired.pem", f"expired-{name}.pem")
    openssl(f"pkcs8 -topk8 -in client.key -out locked.key -passout pass:{PASSWORD}")
    openssl(f"rsa -aes128 -traditional -in client.key -out locked-old.key -passout pass:{PASSWORD}")
    join("locked.key", "client.pem", "locked-both.pem")
