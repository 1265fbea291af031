"""deploy/superlink/proxy.conf under nginx, before a real SuperLink."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

CONF = Path(__file__).resolve().parent.parent.parent / "deploy" / "superlink" / "proxy.conf"
NGINX = (
    os.environ.get("FEDSINK_TEST_NGINX") or shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not (NGINX and shutil.which("openssl") and shutil.which("ssh-keygen")),
        reason="the proxy is nginx; certificates and keys are made with openssl and ssh-keygen",
    ),
]

_AROUND = """
daemon off;
error_log {folder}/error.log;
pid {folder}/nginx.pid;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  include {folder}/proxy.conf;
}}
"""


def openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@pytest.fixture
def proxy(lab: Any, tmp_path: Path) -> Iterator[int]:
    """The port of nginx with the file as it is, except for names, ports and folders."""
    certs, folder = tmp_path / "certs", tmp_path / "nginx"
    folder.mkdir()
    for name in ("pem", "key"):
        shutil.copy(certs / f"server.{name}", certs / f"proxy.{name}")
    elliptic = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        "req", "-x509", *elliptic, "-subj", "/CN=submitters", "-keyout", certs / "s-ca.key",
        "-out", certs / "submitters-ca.crt",
    )  # fmt: skip
    openssl(
        "req", *elliptic, "-subj", "/CN=anna", "-keyout", certs / "anna.key",
        "-out", certs / "anna.csr",
    )  # fmt: skip
    openssl(
        "x509", "-req", "-in", certs / "anna.csr", "-CA", certs / "submitters-ca.crt",
        "-CAkey", certs / "s-ca.key", "-CAcreateserial", "-out", certs / "anna.crt",
    )  # fmt: skip
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    conf = CONF.read_text()
    for name, value in (
        ("listen 8443", f"listen 127.0.0.1:{port}"),
        ("superlink:8000", f"127.0.0.1:{lab.port}"),
        ("proxy_ssl_name superlink", "proxy_ssl_name localhost"),
        ("/certs/", f"{certs}/"),
    ):
        assert name in conf
        conf = conf.replace(name, value)
    (folder / "proxy.conf").write_text(conf)
    (folder / "nginx.conf").write_text(_AROUND.format(folder=folder))
    nginx = subprocess.Popen([str(NGINX), "-p", folder, "-c", folder / "nginx.conf"])
    try:
        for _ in range(100):
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield port
    finally:
        nginx.terminate()
        nginx.wait(20)


def post(port: int, certs: Path, path: str, submitter: str | None = None) -> int:
    context = ssl.create_default_context(cafile=str(certs / "ca.crt"))
    if submitter is not None:
        context.load_cert_chain(certs / f"{submitter}.crt", certs / f"{submitter}.key")
    with httpx.Client(verify=context) as client:
        headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
        return client.post(f"https://127.0.0.1:{port}{path}", headers=headers).status_code


def test_the_proxy_lets_nodes_and_submitters_in_and_nobody_else(
    lab: Any, proxy: int, tmp_path: Path
) -> None:
    certs = tmp_path / "certs"
    direct = {
        path: post(lab.port, certs, path)
        for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task")
    }
    assert set(direct.values()) == {200}  # Flower's own port lets everybody in
    assert post(proxy, certs, "/v1/control/list-runs") == 403
    assert post(proxy, certs, "/v1/control/list-runs", "anna") == 200
    for path in ("/v1/runtime/acquire-task", "/v1/runtime/pull-messages", "/docs", "/"):
        assert post(proxy, certs, path) == post(proxy, certs, path, "anna") == 404
    assert post(proxy, certs, "/v1/fleet/pull-messages") == 401  # a node signs

    lab.register(1)
    lab.port = proxy
    node = lab.start_hospital(1)
    log = tmp_path / "hospital-1.log"
    deadline = time.monotonic() + 120
    while f" of 127.0.0.1:{proxy}" not in log.read_text() and node.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert node.poll() is None, log.read_text()
