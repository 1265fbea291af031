"""A whole deployment on this machine: one SuperLink, two or three hospitals, two minutes.

    python deploy/demo.py [--masked] [FOLDER]

Makes certificates and node keys, starts a SuperLink and two nodes (`fedsink node`) with TLS and
node authentication, each with pictures, policy and ledger of its own, runs both modes, shows what
both ledgers hold, and shows how a policy refuses. Traffic goes to 127.0.0.1 alone. Everything that
was started is stopped again, also on Ctrl-C. FOLDER keeps the files; without it they are removed.
With --masked three hospitals share the noise of one run under masks (secure aggregation) instead.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from PIL import Image

from fedsink.data.sources import load
from fedsink.data.spec import DataSpec

APP = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
CLASSES = tuple("0123456789")
PATIENCE = 60.0

POLICY = """\
# What this hospital allows, whatever a server asks for.
format = 1

[data]
name = "image_folder"
root = "pictures"
shape = [1, 8, 8]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
nominal_records = {records}
lineage = "hospital-{number}-digits"

[state]
folder = "state"

[noise]
backend = "{backend}"

[budget.add-remove]
epsilon = 10.0
delta = 1e-4

[budget.replace-one]
epsilon = 25.0
delta = 1e-4

[allow]
mechanisms = ["clipped-gaussian", "laplace", "randomized-response"]
minimum_noise_multiplier = 0.5
maximum_clip_bound = {bound}
maximum_images = 4000
maximum_rate = 0.25
capacity = "required"
"""


MASKED = """\
secure_aggregation = "masked"

[aggregation]
peers = "../peers.toml"
minimum_cohort = 3
"""


class DemoError(Exception):
    """What went wrong, in one sentence."""


class Lab:
    """SuperLink and hospitals of the demonstration.

    Args:
        folder: where everything is written.
        bounds: the largest clip bound that each hospital allows; they share the digits.
    """

    def __init__(self, folder: Path, bounds: Sequence[float] = (10.0, 3.0)) -> None:
        self.folder = folder
        self.hospitals = dict(enumerate(bounds, 1))
        self.port = _free_port()
        self._started: list[subprocess.Popen[bytes]] = []

    def prepare(self, backend: str) -> None:
        """Certificates, node keys, Flower's configuration, pictures and policies."""
        self._certificates()
        home = self.folder / "submitter"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "lab"\n\n[superlink.lab]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.folder / "certs" / "ca.crt"}"\n'
        )
        data = load(DataSpec("digits", (1, 8, 8), CLASSES, 1437), "train")
        clients = len(self.hospitals)
        records = math.ceil(len(data.labels) / clients)
        for number, bound in self.hospitals.items():
            hospital = self.folder / f"hospital-{number}"
            mine = torch.arange(number - 1, len(data.labels), clients)
            for index, image, label in zip(mine, *data.take(mine), strict=True):
                place = hospital / "pictures" / CLASSES[int(label)]
                place.mkdir(parents=True, exist_ok=True)
                pixels = (image[0] * 255).round().to(torch.uint8).numpy()
                Image.fromarray(pixels).save(place / f"{int(index):04}.png")
            policy = POLICY.format(number=number, records=records, backend=backend, bound=bound)
            (hospital / "policy.toml").write_text(policy)
            key = hospital / "node-key"
            _run("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", key)

    def exchange_identities(self) -> None:
        """Give every hospital the others' public keys, and a policy that adds up under masks."""
        policies = [self.folder / f"hospital-{n}" / "policy.toml" for n in self.hospitals]
        shown = [
            _run(BIN / "fedsink", "node", "key", f"policy={path}").strip() for path in policies
        ]
        lines = (f'{client} = "{key}"\n' for client, key in enumerate(shown))
        (self.folder / "peers.toml").write_text("".join(lines))
        for path in policies:
            path.write_text(path.read_text() + MASKED)

    def start(self) -> None:
        """SuperLink first, then the nodes that it knows."""
        self.start_superlink()
        for number in self.hospitals:
            self.register(number)
            self.start_hospital(number)

    def start_superlink(self) -> None:
        """Start the SuperLink, and wait until it answers."""
        certs = self.folder / "certs"
        self.superlink = self.start_process(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", self.port,
            "--ssl-ca-certfile", certs / "ca.crt", "--ssl-certfile", certs / "server.pem",
            "--ssl-keyfile", certs / "server.key", "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        self._wait_for_port()

    def register(self, number: int) -> Path:
        """Make a hospital's node known to the SuperLink; returns the hospital's folder."""
        hospital = self.folder / f"hospital-{number}"
        self.submitter(BIN / "flwr", "supernode", "register", hospital / "node-key.pub", "lab")
        return hospital

    def start_hospital(self, number: int) -> subprocess.Popen[bytes]:
        """A node that the SuperLink knows; returns its process, which leads a group."""
        hospital = self.folder / f"hospital-{number}"
        return self.start_process(
            hospital.name, "fedsink", "node", f"superlink=127.0.0.1:{self.port}",
            f"certificate={self.folder / 'certs' / 'ca.crt'}", f"key={hospital / 'node-key'}",
            f"policy={hospital / 'policy.toml'}", f"client={number - 1}",
            f"clients={len(self.hospitals)}",
        )  # fmt: skip

    def stop(self) -> None:
        """End every process that was started here, with its children, by process group."""
        for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            for process in self._started:
                _signal(process.pid, number)
            deadline = time.monotonic() + patience
            while any(_alive(p) for p in self._started) and time.monotonic() < deadline:
                time.sleep(0.2)
        self._started.clear()

    def submitter(self, *words: object) -> str:
        """Run a command as whoever submits runs; returns its standard output."""
        return _run(*words, env={"FLWR_HOME": str(self.folder / "submitter")})

    def deploy(self, name: str, *keys: str) -> tuple[int, str, str]:
        """`fedsink deploy` into runs/name: exit code, standard output, last line of the rest.

        The server keeps the run in a folder of its own; the results come through its log.
        """
        folder = self.folder / "submitter" / "runs" / name
        clients = f"clients={len(self.hospitals)}"
        words = [
            BIN / "fedsink", "deploy", f"app={APP}", "superlink=lab", f"folder={folder}",
            f"name={name}", clients, *keys,
        ]  # fmt: skip
        print(f"\n$ fedsink deploy app=deploy superlink=lab {clients} {' '.join(keys)}", flush=True)
        done = subprocess.run(
            [str(word) for word in words],
            env=_environment({"FLWR_HOME": str(self.folder / "submitter")}),
            capture_output=True,
            text=True,
        )
        (self.folder / f"{name}.log").write_text(done.stderr)
        last = (done.stderr.strip().splitlines() or [""])[-1]
        print(
            "\n".join(line for line in done.stderr.splitlines() if re.search(r"round \d+/", line))
        )
        print(done.stdout.strip() or last, f"(exit code {done.returncode})", flush=True)
        return done.returncode, done.stdout.strip(), last

    def show_ledgers(self) -> None:
        """What each hospital's owner sees."""
        for number in self.hospitals:
            policy = self.folder / f"hospital-{number}" / "policy.toml"
            print(f"\n$ fedsink ledger show policy=hospital-{number}/policy.toml", flush=True)
            print(_run(BIN / "fedsink", "ledger", "show", f"policy={policy}"), flush=True)

    def _certificates(self) -> None:
        certs = self.folder / "certs"
        certs.mkdir()
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        _run(
            "openssl", "req", "-x509", *key, "-days", "30", "-subj", "/CN=lab-ca",
            "-keyout", certs / "ca.key", "-out", certs / "ca.crt",
            "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip
        _run(
            "openssl", "req", *key, "-subj", "/CN=localhost",
            "-keyout", certs / "server.key", "-out", certs / "server.csr",
        )  # fmt: skip
        (certs / "san.ext").write_text(
            "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n"
            "keyUsage=digitalSignature\nextendedKeyUsage=serverAuth\n"
        )
        _run(
            "openssl", "x509", "-req", "-in", certs / "server.csr", "-CA", certs / "ca.crt",
            "-CAkey", certs / "ca.key", "-CAcreateserial", "-days", "30",
            "-extfile", certs / "san.ext", "-out", certs / "server.pem",
        )  # fmt: skip

    def start_process(self, name: str, program: str, *words: object) -> subprocess.Popen[bytes]:
        """Start a program of this environment, with a log and a home of its own."""
        home = self.folder / f"flwr-{name}"
        home.mkdir(exist_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in (BIN / program, *words)],
                env=_environment({"FLWR_HOME": str(home), "FEDSINK_STATE": str(home / "runs")}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its process group is what `stop` ends
            )
        self._started.append(process)
        return process

    def _wait_for_port(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and _alive(self.superlink):
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        raise DemoError(f"The SuperLink did not start: see {self.folder / 'superlink.log'}.")


def main(arguments: Sequence[str]) -> int:
    """Run the demonstration; 1 and a sentence where it does not go as promised."""
    # A polite kill ends like Ctrl-C: through every `finally`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        masked = "--masked" in arguments
        with _folder([word for word in arguments if word != "--masked"]) as folder:
            lab = Lab(folder, (10.0,) * 3) if masked else Lab(folder)
            try:
                (_demonstrate_masks if masked else _demonstrate)(lab)
            finally:
                lab.stop()
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; everything that was started is stopped.", file=sys.stderr)
        return 130
    return 0


def _demonstrate(lab: Lab) -> None:
    lab.prepare(_backend())
    lab.start()
    print("A SuperLink and two hospitals are up; both hospitals hold half of the digits.")
    fixed = "capacity=auto"  # batch sizes and times say nothing: both policies require it
    central = ("mode=central", "eps=5", "rounds=600", fixed, "strategy.uses_per_message=60")
    for name, keys in (("central", central), ("ldp", ("mode=ldp", "eps=20", "rounds=300"))):
        code, out, last = lab.deploy(name, *keys)
        if code != 0 or not (Path(out) / "generator.safetensors").is_file():
            raise DemoError(f"mode={name} failed: {last}")
    lab.show_ledgers()
    print("\nHospital 2 allows clip bounds up to 3; this run asks for 6:")
    wide = ("mode=central", "eps=1", "rounds=60", fixed, "strategy.bound=6")
    code, _, last = lab.deploy("refused", *wide)
    if code == 0 or "client 1 refused the request" not in last:
        raise DemoError(f"a run against hospital 2's policy was not refused: {last}")
    refusal = (lab.folder / "hospital-2.log").read_text()
    print(
        "Hospital 2's own log:", next(line for line in refusal.splitlines() if "refuses by" in line)
    )


def _demonstrate_masks(lab: Lab) -> None:
    lab.prepare(_backend())
    lab.exchange_identities()
    lab.start()
    print("A SuperLink and three hospitals are up; each knows the others' public keys.")
    keys = (
        "mode=central", "eps=5", "rounds=600", "capacity=auto", "strategy.uses_per_message=60",
        "strategy.schedule=joint", "noise.share=secure_aggregation",
    )  # fmt: skip
    code, out, last = lab.deploy("masked", *keys)
    if code != 0 or not (Path(out) / "generator.safetensors").is_file():
        raise DemoError(f"the run under masks failed: {last}")
    lab.show_ledgers()
    print("\nHospital 3 now wants four hospitals in every sum; nothing of three is unmasked:")
    policy = lab.folder / "hospital-3" / "policy.toml"
    policy.write_text(policy.read_text().replace("minimum_cohort = 3", "minimum_cohort = 4"))
    code, _, last = lab.deploy("refused", *keys)
    if code == 0 or "void" not in last:
        raise DemoError(f"a sum of too few hospitals was not refused: {last}")


def _backend() -> str:
    """The float-safe noise where its package is installed."""
    try:
        import opendp  # noqa: F401
    except ImportError:
        print('The float-safe noise needs OpenDP (pip install opendp): using "fast".')
        return "fast"
    return "secure"


@contextmanager
def _folder(arguments: Sequence[str]) -> Iterator[Path]:
    if arguments:
        folder = Path(arguments[0]).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise DemoError(f"{folder} is not empty.")
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="fedsink-demo-") as name:
        yield Path(name)


def _environment(more: dict[str, str]) -> dict[str, str]:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    # Flower starts its own programs by their bare names.
    path = os.pathsep.join((str(BIN), os.environ.get("PATH", "")))
    return {**os.environ, **quiet, "PATH": path, "OMP_NUM_THREADS": "1", **more}


def _run(program: object, *words: object, env: dict[str, str] | None = None) -> str:
    if shutil.which(str(program)) is None:
        raise DemoError(f"{program} was not found: install it.")
    command = [str(word) for word in (program, *words)]
    done = subprocess.run(command, env=_environment(env or {}), capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr + done.stdout).strip().splitlines() or ["it said nothing"]
        raise DemoError(f"{' '.join(command[:3])} failed: {said[-1]}")
    return done.stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _alive(process: subprocess.Popen[bytes]) -> bool:
    """Whether anything of the process's group is left."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
