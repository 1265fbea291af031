"""`fedsink node` without a SuperLink: its words, its errors, and the process beside the data."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing import forkserver, get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fedsink.clients.app import app
from fedsink.clients.node import close_nodes
from fedsink.clients.runner_process import SURROUNDINGS, RunnerProcess
from fedsink.commands.cli import main
from fedsink.commands.node import LONGEST, SHORTEST, _knock, _tls, pause
from fedsink.errors import ClientError, ConfigError
from fedsink.flower_internals import become
from fedsink.protocol.dp_sinkhorn import Objective
from fedsink.protocol.failure_codes import FAILED, MALFORMED, REFUSED
from fedsink.protocol.requests import unpack_replies
from fedsink.protocol.signing import make_private_key, shown_key

from ..support.hospital import CLASSES, SHAPE, hospital
from ..support.processes import children, gone
from ..support.requests import gradient_request, plan_of

GIVEN = ("policy=policy.toml", "superlink=lab.example:8000", "client=0", "clients=2")
ONE = {"partition-id": 0, "num-partitions": 1, "device": "cpu"}


def node(*keys: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["node", *keys])
    return int(str(ended.value.code))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (GIVEN[1:], "policy= is missing; fedsink node --help says what to give."),
        (GIVEN[:1] + GIVEN[2:], "superlink= is missing"),
        ((*GIVEN[:3], "clients=0"), "clients=0: must be at least 1"),
        ((*GIVEN[:2], "client=2", "clients=2"), "client=2 is none of clients=2"),
        ((GIVEN[0], "superlink=lab.example", *GIVEN[2:]), "expected host:port"),
        ((*GIVEN, "polcy=x"), "Unknown key 'polcy'. Did you mean policy?"),
        ((*GIVEN, "insecure=true", "key=k"), "insecure=true uses no TLS, and key= needs it"),
        ((*GIVEN, "key=/no/such/key"), "key=/no/such/key cannot be read: No such file"),
        ((*GIVEN, "certificate=/no/ca.crt"), "certificate=/no/ca.crt cannot be used: No such"),
    ],
)
def test_bad_input_is_one_sentence(
    keys: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert node(*keys) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_key_of_another_kind_and_a_file_without_certificate_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    private = ed25519.Ed25519PrivateKey.generate()
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    assert node(*GIVEN, f"key={key}") == 2
    assert "holds no elliptic-curve key" in capsys.readouterr().err
    assert node(*GIVEN, f"certificate={key}") == 2
    assert "cannot be used: it holds no certificate" in capsys.readouterr().err


@pytest.mark.slow  # starts a process that imports everything
def test_a_connection_without_tls_is_said_loudly_and_a_broken_policy_ends_before_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SURROUNDINGS:
        monkeypatch.setenv(name, "1")  # and as it was, after the command has set it
    policy = hospital(tmp_path, classes=["a"])
    with listener() as port:
        keys = (f"policy={policy}", f"superlink=127.0.0.1:{port}", *GIVEN[2:], "insecure=true")
        assert node(*keys) == 2
    out, err = capfd.readouterr()
    assert out == ""
    warning, error = err.splitlines()
    assert "WARNING: insecure=true: anybody on the network path reads" in warning
    assert "which is not in data.classes" in error


def test_a_node_asks_often_while_a_run_goes_on_and_seldom_without_one() -> None:
    waits = [pause(idle) for idle in (0.0, 0.2, 1.0, 4.0, 60.0)]
    assert waits == [SHORTEST, SHORTEST, 0.25, 1.0, LONGEST]


@contextmanager
def listener(context: ssl.SSLContext | None = None) -> Iterator[int]:
    """A port of this machine that takes connections, with TLS or without."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def serve() -> None:
            server.settimeout(0.1)
            while not stop.is_set():
                try:
                    plain, _ = server.accept()
                    with plain:
                        if context is None:
                            plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        else:
                            context.wrap_socket(plain, server_side=True).close()
                except OSError:
                    continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            stop.set()
            thread.join()


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for a name of this machine, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "lab")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir()
    (folder / "crt").write_bytes(made.public_bytes(Encoding.PEM))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key").write_bytes(pem)
    return folder / "crt", folder / "key"


def test_a_superlink_that_is_not_there_or_not_the_right_one_is_named(tmp_path: Path) -> None:
    own, key = certificate(tmp_path / "own", "localhost")
    other, _ = certificate(tmp_path / "other", "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own, key)
    with listener(context) as port:
        _knock("localhost", port, _tls(own, False))
        with pytest.raises(ClientError, match=r"certificate= does not vouch for: self-signed"):
            _knock("localhost", port, _tls(other, False))
        with pytest.raises(ClientError, match=r"does not vouch for: IP address mismatch"):
            _knock("127.0.0.1", port, _tls(own, False))
    with pytest.raises(ClientError, match=r"No SuperLink answers at .*: Connection refused\.$"):
        _knock("localhost", port, None)
    with listener() as port, pytest.raises(ClientError, match="speaks no TLS"):
        _knock("localhost", port, _tls(own, False))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hospital")
    hospital(folder)
    return folder


@pytest.fixture(scope="module")
def runner(home: Path) -> RunnerProcess:
    return RunnerProcess({"policy": str(home / "policy.toml"), **ONE})


def asking(kind: str, content: RecordDict) -> Message:
    become(1, 1)
    message = Message(content, dst_node_id=1, message_type=kind)
    message.metadata.__dict__["_message_id"] = "0" * 64
    return message


def gradient(round: int) -> Message:
    request = gradient_request(
        plan_of("record"), Objective(0.5, len(CLASSES)), round=round, shape=SHAPE, run="run"
    )
    return asking("train.dp_sinkhorn", request.to_record())


@contextmanager
def killing(
    runner: RunnerProcess, victims: Callable[[], list[int]], number: int
) -> Iterator[set[int]]:
    """Kills the first processes that appear while the runner answers."""
    killed: set[int] = set()
    stop = threading.Event()

    def watch() -> None:
        while len(killed) < number and not stop.is_set():
            for pid in victims():
                if pid not in killed:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


@pytest.mark.medium
def test_the_owner_reads_what_is_admitted_and_where_state_lies(
    runner: RunnerProcess, home: Path
) -> None:
    assert runner.admitted == (
        "ward: answers clipped-gaussian; "
        f"ε ≤ 1e+06, δ ≤ 0.0001 add-remove; noise=fast; state in {home / 'state'}"
    )


@pytest.mark.medium
def test_a_fork_answers_what_the_app_answers(runner: RunnerProcess, home: Path) -> None:
    message = gradient(1)
    (remote,) = unpack_replies(runner.answer(message).content)
    assert children(runner.pid) == []
    close_nodes()
    config: dict[str, bool | bytes | float | int | str] = {
        "policy": str(home / "policy.toml"),
        **ONE,
    }
    (here,) = unpack_replies(app(message, Context(1, 1, config, RecordDict(), {})).content)
    assert torch.equal(remote, here)  # from the node's store, not computed again
    identity = runner.answer(asking("query.identity", RecordDict()))
    assert identity.content.config_records["identity"]["client"] == 0
    for kind in ("train.dp_sinkhorn", "train.no_such_answer", "evaluate"):
        assert runner.answer(asking(kind, RecordDict())).error.code == MALFORMED


STRANGER = """
import pyarrow  # as Hugging Face's datasets do; a prepared process has none
from flwr.app import Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    assert context.run_config == {"local-epochs": 2}
    message.content["mine"] = message.content.pop("arrays")
    return Message(message.content, reply_to=message)
"""
POLICY = """
[data]
lineage = "ward"
nominal_records = 60
[state]
folder = "state"
[noise]
backend = "fast"
[budget.client]
epsilon = 10.0
delta = 1e-5
[app]
client = "strangers.client_app:app"
job = "update"
rounds = 2
delta = 1e-6
clip_bound = 1.0
noise_multiplier = 4.0
[app.config]
local-epochs = 2
"""


@pytest.mark.medium
def test_a_strangers_app_is_answered_behind_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    become(1, 1)
    (tmp_path / "policy.toml").write_text(POLICY)
    config = {"policy": str(tmp_path / "policy.toml"), **ONE}
    with pytest.raises(ConfigError, match=r"'strangers.client_app:app' cannot be used \(No module"):
        RunnerProcess(config)
    (tmp_path / "strangers").mkdir()
    (tmp_path / "strangers" / "client_app.py").write_text(STRANGER)
    monkeypatch.syspath_prepend(str(tmp_path))
    runner = RunnerProcess(config)
    assert runner.admitted.startswith("ward: answers strangers.client_app:app (guarded); ε ≤ 10")
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    replies = [runner.answer(asking("train", RecordDict({"arrays": arrays}))) for _ in range(3)]
    assert [reply.has_error() for reply in replies] == [False, False, True]
    assert replies[0].content["metrics"] == {"num-examples": 60}
    noised = [reply.content["arrays"]["w"].numpy() for reply in replies[:2]]
    assert 0 < np.abs(noised[0] - noised[1]).max() < 40
    assert replies[2].error.code == REFUSED
    assert "assert" not in capfd.readouterr().err  # the app has not failed, which would not show
    assert runner.answer(asking("query", RecordDict())).has_error()
    identity = runner.answer(asking("query.identity", RecordDict()))
    assert identity.content.config_records["identity"]["client"] == 0


@pytest.mark.medium
def test_a_fork_that_is_killed_is_followed_by_another(runner: RunnerProcess) -> None:
    pid = runner.pid
    with killing(runner, lambda: children(pid), 1) as killed:
        reply = runner.answer(gradient(2))
    assert len(killed) == 1
    assert not reply.has_error()
    assert runner.pid == pid


@pytest.mark.medium
def test_a_message_that_kills_every_fork_is_answered_by_a_code(runner: RunnerProcess) -> None:
    pid = runner.pid
    with killing(runner, lambda: children(pid), 2) as killed:
        reply = runner.answer(gradient(3))
    assert len(killed) == 2
    assert (reply.error.code, reply.error.reason) == (FAILED, None)
    assert not runner.answer(gradient(3)).has_error()


@pytest.mark.medium
def test_a_message_that_follows_at_once_on_the_runners_death_is_answered(
    runner: RunnerProcess,
) -> None:
    for _ in range(4):
        os.kill(runner.pid, signal.SIGKILL)
        assert not runner.answer(asking("query.identity", RecordDict())).has_error()


@pytest.mark.slow
def test_a_runner_that_is_killed_is_started_again_and_its_fork_answers(
    runner: RunnerProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    pid, forks = runner.pid, []

    def parent_of_a_fork() -> list[int]:
        if not forks and (new := children(pid)):
            forks.extend(new)
            time.sleep(0.05)  # the node has heard of its fork by then
        return [pid] if forks else []

    with killing(runner, parent_of_a_fork, 1) as killed:
        reply = runner.answer(gradient(4))
    assert killed == {pid}
    assert all(gone(fork) for fork in forks)
    assert not reply.has_error()
    assert not runner.answer(gradient(5)).has_error()
    assert runner.pid != pid
    said = capfd.readouterr().err
    assert said.count("the runner died; another has started.") == 1
    assert "the process that answered" not in said


@pytest.mark.slow
def test_a_nodes_owner_hears_once_what_reading_passed_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hospital(tmp_path)
    (tmp_path / "pictures" / "a" / "ward-7.txt").write_text("no picture")
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # it writes to an earlier test
    process = RunnerProcess({"policy": str(tmp_path / "policy.toml"), **ONE})
    for round in (1, 2):
        assert not process.answer(gradient(round)).has_error()
    assert capfd.readouterr().err.count("ward-7.txt") == 1


_WATCHED = """
import sys
before = set(sys.modules)
from fedsink.clients import node, runner
from fedsink.data.sources import _load
from fedsink.clients import runner_process

held = _load.cache_info().currsize, len(node._NODES)
reply = runner.answered(config, message)
loaded = _load.cache_info().currsize, len(node._NODES)
sender.send((reply.has_error(), sorted(set(sys.modules) - before), held, loaded, runner.THREADS))
"""


@pytest.mark.medium
def test_nothing_is_imported_in_a_fork_and_nothing_stays_behind(
    runner: RunnerProcess, home: Path
) -> None:
    assert runner.pid
    processes = get_context("forkserver")
    for _ in range(2):
        receiver, sender = processes.Pipe(duplex=False)
        config = {"policy": str(home / "policy.toml"), **ONE}
        scope = {"config": config, "message": gradient(6), "sender": sender}
        processes.Process(target=exec, args=(_WATCHED, scope)).start()
        sender.close()
        assert receiver.recv() == (False, [], (0, 0), (1, 1), 1)


_OWNER = """
import sys, time
from multiprocessing import forkserver, get_context
from fedsink.clients.runner_process import RunnerProcess

process = RunnerProcess({"policy": sys.argv[1], "partition-id": 0, "num-partitions": 1})
answers_for_ever = '''
import time
from multiprocessing import Pipe
from fedsink.clients import runner
from fedsink.clients.runner_process import _work

runner.opened = lambda sleep=time.sleep: sleep(600)
_work(Pipe()[1], "opened")
'''
fork = get_context("forkserver").Process(target=exec, args=(answers_for_ever,))
fork.start()
print(process.pid, fork.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow  # starts a process that imports everything
def test_runner_and_fork_end_with_the_process_that_started_them(home: Path) -> None:
    words = [sys.executable, "-c", _OWNER, str(home / "policy.toml")]
    owner = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    time.sleep(1)
    assert len(pids) == 2
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    owner.kill()
    owner.communicate(timeout=60)
    assert all(gone(pid) for pid in pids)


@pytest.mark.medium
def test_a_least_cohort_above_all_clients_is_refused_at_the_start(tmp_path: Path) -> None:
    path = hospital(tmp_path)
    allow = path.read_text().replace("[allow]", '[allow]\nsecure_aggregation = "masked"')
    for least, clients in ((4, 3), (3, 3)):
        peers = "".join(f'{number} = "{_shown()}"\n' for number in range(clients))
        (tmp_path / "peers.toml").write_text(peers)
        path.write_text(f'{allow}\n[aggregation]\npeers = "peers.toml"\nminimum_cohort = {least}\n')
        config = {"policy": str(path), **ONE, "num-partitions": clients}
        if least > clients:
            match = r"minimum_cohort = 4, and clients=3 take part: no sum is ever unmasked"
            with pytest.raises(ConfigError, match=match):
                RunnerProcess(config)
        else:
            assert "in sums of at least 3 clients" in RunnerProcess(config).admitted


def _shown() -> str:
    return shown_key(ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw())


def test_an_authority_is_never_made_where_its_name_was_mistyped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "authority.pem"
    words = ("certify", f"authority={file}", "client=0", f"identity={_shown()}")
    assert node(*words) == 2
    assert f"openssl genpkey -algorithm ed25519 -out {file}" in capsys.readouterr().err
    assert not file.exists()
    make_private_key(file)
    assert node(*words) == 0
    assert re.fullmatch(
        r'authority = "ed25519:\S+"\ncertificate = "[0-9a-f]{128}"\n', capsys.readouterr().out
    )


@pytest.mark.medium
def test_a_client_that_does_not_exist_is_refused_at_the_start(home: Path) -> None:
    config = {"policy": str(home / "policy.toml"), **ONE, "partition-id": 3}
    with pytest.raises(ConfigError, match="There is no client 3"):
        RunnerProcess(config)


@pytest.mark.slow  # starts a process that imports everything
@pytest.mark.parametrize(
    ("at_start", "said"),
    [
        (
            "threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "the runner has 2 threads and cannot fork safely: uninstall the package",
        ),
        (
            "sys.modules['safetensors'] = None",
            "no message can be answered, install fedsink-node anew: import of safetensors",
        ),
    ],
)
def test_a_runner_that_cannot_answer_says_why(at_start: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys, threading\n{at_start}\n")
    code = "from fedsink.clients.runner_process import RunnerProcess as R; R({})"
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
    assert said in done.stderr
    assert "ClientError: The runner died at its start" in done.stderr
