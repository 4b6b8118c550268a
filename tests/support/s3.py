"""A real S3 server on loopback: moto's, as a child process. Its log has every request."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from botocore.config import Config
from botocore.session import Session

from service.child_server import HOST, free_port
from tests.support.waiting import wait_for

SECRET = "s3cret-Ab12/key+of=tests"
NO_CREDENTIALS = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@dataclass(frozen=True, kw_only=True)
class S3Server:
    """A running S3 server."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def env(self) -> Mapping[str, str]:
        """The environment in which clients find the server and their credentials."""
        return {
            **NO_CREDENTIALS,
            "AWS_ENDPOINT_URL": f"http://{HOST}:{self.port}",
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text(errors="replace")
        try:
            urlopen(f"http://{HOST}:{self.port}/moto-api/", timeout=60).close()
        except (URLError, OSError):
            return False
        return True


class Bucket:
    """A bucket of a server."""

    def __init__(self, server: S3Server, name: str) -> None:
        self.server, self.name, self.url = server, name, f"s3://{name}"
        self.client: Any = Session().create_client(
            "s3",
            endpoint_url=server.env["AWS_ENDPOINT_URL"],
            aws_access_key_id="tester",
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}),
        )
        self.client.create_bucket(Bucket=name)

    def put(self, folder: Path, prefix: str) -> str:
        """Upload a folder as it is; return its URL."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.write(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())
        return f"{self.url}/{prefix}"

    def write(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=content)

    def keys(self, prefix: str = "") -> list[str]:
        found = self.client.list_objects_v2(Bucket=self.name, Prefix=prefix).get("Contents", [])
        return [one["Key"] for one in found]

    def deny(self, action: str) -> None:
        """Deny an action, such as `s3:PutObject`, from now on."""
        what = {"Action": action, "Resource": f"arn:aws:s3:::{self.name}/*"}
        statement = {"Effect": "Deny", "Principal": "*", **what}
        policy = {"Version": "2012-10-17", "Statement": [statement]}
        self.client.put_bucket_policy(Bucket=self.name, Policy=json.dumps(policy))

    def remove(self) -> None:
        for key in self.keys():
            self.client.delete_object(Bucket=self.name, Key=key)
        self.client.delete_bucket(Bucket=self.name)

    def requests(self, method: str) -> list[str]:
        """Return the keys of all objects that were requested by `method` so far, in order."""
        plain = re.sub(r"\x1b\[[0-9;]*m", "", self.server.log.read_text(errors="replace"))
        return re.findall(rf'"{method} /{self.name}/([^\s?]+)\S* HTTP', plain)


@contextmanager
def s3_server(log: Path) -> Iterator[S3Server]:
    """Run an S3 server for the block."""
    port, start = free_port(), "from moto.server import main; main()"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", start, "-H", HOST, "-p", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    server = S3Server(process=process, port=port, log=log)
    try:
        wait_for(server.answers)
        yield server
    finally:
        server.stop()
