"""Certificates for tests of TLS, made with openssl: good ones, and what may be wrong with one."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

HOST = "127.0.0.1"
PASSWORD = "s3cr3t"


class Authority:
    """A CA in a directory, `<name>.pem` and `<name>.key`. What it issues is for HOST, by address only."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory, self.name = directory, name
        # With what Python 3.13 wants of the certificates of an HTTP server.
        key = f"-addext keyUsage=keyCertSign -keyout {name}.key -out {name}.pem"
        openssl(directory, f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} {key}")
        (directory / "names").write_text(f"subjectAltName=IP:{HOST},IP:::1\nauthorityKeyIdentifier=keyid\n")

    def issue(self, name: str, *, days: int = 2) -> None:
        """Issue a certificate for `CN=name`; where there is one, it and its key are replaced.

        It is `<name>.pem`, its key `<name>.key`; `<name>-both.pem` holds both.
        """
        with tempfile.TemporaryDirectory(dir=self.directory) as place:
            stage = Path(place)
            openssl(stage, f"req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out request")
            signing = f"-CA ../{self.name}.pem -CAkey ../{self.name}.key -CAcreateserial -extfile ../names"
            openssl(stage, f"x509 -req -in request {signing} -days {days} -out {name}.pem")
            join(stage, f"{name}.key", f"{name}.pem", f"{name}-both.pem")
            for suffix in (".pem", ".key", "-both.pem"):
                (stage / f"{name}{suffix}").replace(self.directory / f"{name}{suffix}")


def certify(directory: Path) -> None:
    """Make a CA (`ca`), a server and a client, and a `stranger` to them, who has signed itself.

    See Authority for their files. `expired-server` and `expired-client` have certificates of the day before
    yesterday. The client's key is also there under a password: `locked.key`, `locked-old.key` and
    `locked-both.pem`.
    """
    authority = Authority(directory)
    Authority(directory, "stranger")
    join(directory, "stranger.key", "stranger.pem", "stranger-both.pem")
    for name in ("server", "client"):
        authority.issue(name)
        authority.issue(f"expired-{name}", days=-1)
    openssl(directory, f"pkcs8 -topk8 -in client.key -out locked.key -passout pass:{PASSWORD}")
    openssl(
        directory, f"rsa -aes128 -traditional -in client.key -out locked-old.key -passout pass:{PASSWORD}"
    )
    join(directory, "locked.key", "client.pem", "locked-both.pem")


def openssl(directory: Path, words: str) -> None:
    subprocess.run(["openssl", *words.split()], check=True, cwd=directory, stderr=subprocess.DEVNULL)


def join(directory: Path, key: str, cert: str, both: str) -> None:
    """One file with the key and the certificate, for its owner alone."""
    (directory / both).touch(0o600)
    (directory / both).write_text((directory / key).read_text() + (directory / cert).read_text())
