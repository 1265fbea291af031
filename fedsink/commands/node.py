"""`fedsink node`: answers a SuperLink from private data, under its owner's policy."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsink.commands.command_keys import Parser, flag, parse, whole
from fedsink.errors import ClientError, ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

    from fedsink.clients.runner_process import RunnerProcess
    from fedsink.deployment.fleet import Fleet

HELP = """Usage: fedsink node policy=FILE superlink=HOST:PORT client=N clients=K
                    [certificate=FILE] [key=FILE] [device=cpu] [insecure=true]
       fedsink node key policy=FILE
       fedsink node certify authority=FILE client=N identity=ed25519:…

Answers a SuperLink from the data that the policy names, until Ctrl-C or SIGTERM. The policy is
checked before anything connects. Only outgoing connections are made.

  policy       the owner's file: the allowed answers, and the places of data and state
  superlink    address of the server
  client       this node's number from 0; clients: number of nodes
  certificate  of the authority that signed the SuperLink's; left out: the system's authorities
  key          the node's private key (ssh-keygen -t ecdsa -b 384); left out: one for this run
  device       cpu, cuda or cuda:N
  insecure     true: no TLS, for a network that is trusted, or a tunnel

Every message is answered by a fork of one prepared process: no code of a submitter runs, and
records that a fork has read end with it.

fedsink node key prints the node's public identity, by which others verify what it was charged
(fedsink verify peers=…), and other nodes know it in secure aggregation. Its private half,
identity.pem in the policy's state folder, is made then.

fedsink node certify is for a consortium's authority: it prints the lines of a node's table
[aggregation], by which all nodes know that the identity is client N's. The file holds the
authority's private key: openssl genpkey -algorithm ed25519 -out authority.pem makes one, once.

Example: fedsink node policy=policy.toml superlink=lab.example:8000 client=0 clients=2 \\
           certificate=ca.crt key=node-key"""

SHORTEST, LONGEST = 0.1, 3.0
"""Seconds between two questions whether a message waits."""
_PATIENCE = 10.0


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Answers until the process is told to stop."""
    if arguments[0] == "key":
        return _show_identity(arguments[1:])
    if arguments[0] == "certify":
        return _certify(arguments[1:])
    keys = _read(arguments)
    host, port = keys["superlink"]
    key = _private_key(keys.get("key"))
    certificate, insecure = keys.get("certificate"), keys.get("insecure", False)
    tls = _tls(certificate, insecure)
    signal.signal(signal.SIGTERM, _stop)

    from fedsink.clients.runner_process import SURROUNDINGS, RunnerProcess
    from fedsink.deployment.fleet import Fleet

    os.environ.update(SURROUNDINGS)
    config = {
        "policy": str(keys["policy"].resolve()),
        "partition-id": keys["client"],
        "num-partitions": keys["clients"],
        "device": keys.get("device", "cpu"),
    }
    runner = RunnerProcess(config)
    print(f"fedsink node: {runner.admitted}", flush=True)
    _knock(host, port, tls)
    with Fleet(f"{host}:{port}", certificate, key, insecure=insecure) as fleet:
        print(f"fedsink node: node {fleet.node_id} of {fleet.address}", flush=True)
        _serve(fleet, runner)
    return 0


def _show_identity(arguments: Sequence[str]) -> int:
    keys = parse(arguments, {"policy": _path}, of="node", needs=("policy",))
    from fedsink.clients.owner.policy_file import read_policy
    from fedsink.protocol.signing import NodeIdentityKey

    print(NodeIdentityKey.at(read_policy(keys["policy"]).state).shown)
    return 0


def _certify(arguments: Sequence[str]) -> int:
    parsers: dict[str, Parser] = {"authority": _path, "client": whole(0), "identity": str}
    keys = parse(arguments, parsers, of="node", needs=tuple(parsers))
    from fedsink.protocol.signing import read_key, read_private_key, shown_key
    from fedsink.secagg.identities import certify

    identity = read_key(keys["identity"])
    if not keys["authority"].is_file():
        raise ConfigError(
            f"authority={keys['authority']} is no file: name the one with the authority's key, or "
            f"make a key once by openssl genpkey -algorithm ed25519 -out {keys['authority']}."
        )
    key = read_private_key(keys["authority"], "Make another one, and certify every node anew.")
    print(f'authority = "{shown_key(key.public_key().public_bytes_raw())}"')
    print(f'certificate = "{certify(key, keys["client"], identity).hex()}"')
    return 0


def _serve(fleet: Fleet, runner: RunnerProcess) -> None:
    from fedsink.flower_internals import LostMessageError

    last = time.monotonic()
    while True:
        try:
            message = fleet.receive()
            if message is None:
                time.sleep(pause(time.monotonic() - last))
                continue
            start = time.monotonic()
            reply = runner.answer(message)
            last = time.monotonic()
            fleet.send(reply, last - start)
        except LostMessageError as error:
            print(f"fedsink node: a message is dropped: {error}.", file=sys.stderr)
            continue
        outcome = f"code {reply.error.code}" if reply.has_error() else "answered"
        kind = message.metadata.message_type
        print(f"fedsink node: {kind} {outcome} in {last - start:.2f} s", flush=True)


def pause(idle: float) -> float:
    """Seconds until the next question, `idle` seconds after the last message."""
    # A quarter of that time: waiting adds at most a quarter to what the server takes, and a node
    # without a run asks every three seconds.
    return min(max(idle / 4, SHORTEST), LONGEST)


def _read(arguments: Sequence[str]) -> dict[str, Any]:
    parsers: dict[str, Parser] = {
        "policy": _path, "superlink": _address, "client": whole(0), "clients": whole(1),
        "certificate": _path, "key": _path, "device": str, "insecure": flag,
    }  # fmt: skip
    keys = parse(arguments, parsers, of="node", needs=tuple(parsers)[:4])
    if keys["client"] >= keys["clients"]:
        raise ConfigError(
            f"client={keys['client']} is none of clients={keys['clients']}: they are numbered "
            "from 0."
        )
    if keys.get("insecure"):
        if given := {"certificate", "key"} & keys.keys():
            raise ConfigError(
                f"insecure=true uses no TLS, and {sorted(given)[0]}= needs it: leave one of them "
                "out."
            )
        print(
            "fedsink node: WARNING: insecure=true: anybody on the network path reads and can "
            "change every message. Use it only on a trusted network or in a tunnel.",
            file=sys.stderr,
        )
    return keys


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError("expected host:port, for example lab.example:8000")
    return host, int(port)


def _private_key(path: Path | None) -> ec.EllipticCurvePrivateKey | None:
    if path is None:
        return None
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"key={path} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            f"key={path} holds no elliptic-curve key without a password: make one by ssh-keygen "
            '-t ecdsa -b 384 -N "" -f node-key.'
        )
    return key


def _tls(certificate: Path | None, insecure: bool) -> ssl.SSLContext | None:
    if insecure:
        return None
    try:
        return ssl.create_default_context(cafile=None if certificate is None else str(certificate))
    except (OSError, ssl.SSLError) as error:
        reason = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(f"certificate={certificate} cannot be used: {reason}.") from None


def _knock(host: str, port: int, tls: ssl.SSLContext | None) -> None:
    """Raises ClientError where no SuperLink can be reached, or its certificate is another's."""
    try:
        with socket.create_connection((host.strip("[]"), port), _PATIENCE) as plain:
            if tls is not None:
                tls.wrap_socket(plain, server_hostname=host.strip("[]")).close()
    except ssl.SSLCertVerificationError as error:
        raise ClientError(
            f"superlink={host}:{port} shows a certificate that certificate= does not vouch for: "
            f"{error.verify_message}."
        ) from None
    except ssl.SSLError:
        raise ClientError(
            f"superlink={host}:{port} speaks no TLS: use another port, or insecure=true."
        ) from None
    except OSError as error:
        raise ClientError(
            f"No SuperLink answers at superlink={host}:{port}: {error.strerror or error}."
        ) from None


def _stop(number: int, frame: object) -> None:
    """Ends through every `with`, once; a request to stop is no failure."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(0)
