"""The documentation, run word for word as a newcomer runs it.

A *scene* is a page's fenced blocks in order (or the acts that `SCENES` lists, where several people
take part), in an empty HOME. The text of each block is executed, in a terminal of its own that
starts in the folder and with the variables that the block before has left. A page that `SCENES`
does not name is a scene by itself. A comment on the line before a block says what else is to know:

    <!-- medium -->          the scene takes over half a second, or (slow) many seconds: it is among
    <!-- slow -->            the tests of that mark; so is one that serves, or works in a checkout
    <!-- serves: WORDS -->   it runs until the scene ends; the next block waits until it says WORDS
    <!-- says: WORDS -->     it ends with status 0, and says these words (`flwr run` never fails)
    <!-- fails: WORDS -->    it ends with a status that is not 0, and says these words
    <!-- file: PATH -->      no command: the reader writes this text to PATH (any language)
    <!-- added to: PATH -->  the same, at the end of what is there
    <!-- shown -->           no command: each of its lines was printed before (any language)
    <!-- no scene -->        it needs something that no machine of ours has: the paragraph before
                             says so to the reader ("needs …"), and `NO_SCENE` lists it

What is the reader's (DIR, HOST, lab.example …) stands in `READERS`, or in an act's `words`.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ..support.writers import some, write_leaf

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*/README.md"),
        ROOT / "benchmarks" / "README.md",
    )
)


@dataclass(frozen=True)
class Act:
    """What one reader does: the blocks of a page that hold some words, in order.

    The reader works in a folder below the scene's; "fedsink" or a folder in it is a checkout, whose
    `.venv` is this environment. `words` are the reader's, beside `READERS`: each word of the text
    and its value, in which {scene} is the scene's folder, or a pattern whose last group that was
    printed so far is meant.
    """

    page: str
    has: str = ""  # left out: every block
    folder: str = ""
    words: Mapping[str, str | re.Pattern[str]] = field(default_factory=dict)
    takes: tuple[str, ...] = ()  # files of other readers, below the scene's folder
    brings: Callable[[Path], None] | None = None  # makes the reader's own files
    interrupted: str = ""  # Ctrl-C is pressed once the blocks say this


DEPLOY, NODE, POLICY = "docs/deploy.md", "docs/node.md", "docs/policy.md"
MASKED = "docs/masked-nodes.md"
_PRINTED = (
    r"(ed25519:[A-Za-z0-9+/=]{20,})\s"  # by fedsink node key, of the first owner, the second …
)
PEERS = {
    f"ed25519:{name}": re.compile(rf"(?s)\A(?:.*?{_PRINTED}){{{number}}}")
    for number, name in enumerate(("FIRST", "SECOND", "THIRD"), 1)
}
TUTORIAL, PLUGIN = "docs/tutorials/deployment.md", "examples/plugin/README.md"
FLOWER, GUARDED = "examples/flower-digits/README.md", "examples/guarded-fedavg/README.md"
# An owner's decision: privatized pictures may leave as well (mode=ldp).
BOTH_MODES = {
    '["clipped-gaussian"]': '["clipped-gaussian", "laplace", "randomized-response"]',
    "[allow]": "[budget.replace-one]\nepsilon = 25.0\ndelta = 1e-4\n\n[allow]",
}


def pictures(owner: int, owners: int) -> Callable[[Path], None]:
    """An owner's share of scikit-learn's digits, as pictures/CLASS/*.png."""

    def bring(folder: Path) -> None:
        from PIL import Image
        from sklearn.datasets import load_digits

        digits = load_digits()
        for number in range(owner, 1437, owners):
            place = folder / "pictures" / str(digits.target[number])
            place.mkdir(parents=True, exist_ok=True)
            pixels = (digits.images[number] * 15.9).astype("uint8")
            Image.fromarray(pixels).save(place / f"{number:04}.png")

    return bring


READERS: dict[str, str | re.Pattern[str]] = {"lab.example": "localhost", "HOST": "127.0.0.1"}


def _pictures(folder: Path) -> None:
    """Cats and dogs of noise, with a few of other sizes."""
    random = np.random.default_rng(0)
    for split, number in product(("train", "test"), range(40)):
        place = folder / "pictures" / split / ("cat", "dog")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        size = (40, 32, 3) if number < 4 else (32, 32, 3)
        pixels = random.integers(0, 256, size, dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")


def _writers(folder: Path) -> None:
    """LEAF's files of twelve writers of digits."""
    for split, seed in (("train", 0), ("test", 1)):
        words = {f"f{number:04}": "01234567890123456789" for number in range(12)}
        write_leaf(folder / "leaf", split, some(words, seed))


def _mnist(folder: Path) -> None:
    """scikit-learn's digits, in MNIST's files and size, where the guarded app reads them."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.images * 15.9).astype(np.uint8).repeat(3, 1).repeat(3, 2)
    pixels = np.pad(pixels, ((0, 0), (2, 2), (2, 2)))
    raw = folder.parents[2] / "home" / ".cache" / "mnist" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    test, train = np.arange(1500, len(pixels)), np.arange(1500).repeat(40)  # as many as MNIST's
    for split, part in (("train", train), ("t10k", test)):
        images, labels = pixels[part], digits.target[part].astype(np.uint8)
        sizes = np.array([0x803, *images.shape], ">i4").tobytes()
        (raw / f"{split}-images-idx3-ubyte").write_bytes(sizes + images.tobytes())
        sizes = np.array([0x801, len(labels)], ">i4").tobytes()
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(sizes + labels.tobytes())


# Scenes of several acts, and pages that want more than an empty folder.
SCENES: dict[str, tuple[Act, ...]] = {
    "a deployment": (
        Act(DEPLOY, "CN=lab-ca", "lab"),
        Act(DEPLOY, "flower-superlink", "lab"),
        Act(DEPLOY, "/absolute/path", "lab", words={"/absolute/path": "{scene}/lab"}),
        *(
            act
            for ward in (0, 1)
            for act in (
                Act(POLICY, "[data]", f"ward{ward}", words=BOTH_MODES, brings=pictures(ward, 2)),
                Act(NODE, "ssh-keygen", f"ward{ward}"),
                Act(DEPLOY, "supernode register", "lab", takes=(f"ward{ward}/node-key.pub",)),
            )
        ),
        Act(DEPLOY, "CN=proxy", "lab"),
        Act(DEPLOY, "events {}", "lab"),
        Act(DEPLOY, "nginx -p", "lab", words={"/path/to/fedsink": str(ROOT)}),
        Act(NODE, "fedsink node policy", "ward0", takes=("lab/ca.crt",)),
        Act(
            NODE, "fedsink node policy", "ward1", takes=("lab/ca.crt",),
            words={"client=0": "client=1", "lab.example:8000": "localhost:8443"},
        ),
        Act(DEPLOY, "mode=central", "fedsink", interrupted="round 120/"),
        Act(DEPLOY, "resume=NAME", "fedsink", words={"NAME": re.compile(r"^run (\S+)$", re.M)}),
        Act(
            DEPLOY, "socat", "anna", words={"TCP-LISTEN:8000": "TCP-LISTEN:8001"},
            takes=("lab/ca.crt", "lab/submitter.pem"),
        ),
        Act(DEPLOY, "tunnel's end", "anna", words={"127.0.0.1:8000": "127.0.0.1:8001"}),
        Act(DEPLOY, "mode=ldp", "fedsink"),
        Act(NODE, "fedsink ledger show", "ward0"),
        Act(NODE, "fedsink node key", "ward0"),
        Act("docs/verify.md", "fedsink ledger statement", "ward0"),
    ),
    "a certificate without 127.0.0.1": (  # nobody's page says so: the submitter hears why it waits
        Act(
            DEPLOY, "CN=lab-ca", "lab",
            words={"DNS:lab.example,DNS:localhost,IP:127.0.0.1": "DNS:localhost"},
        ),
        Act(DEPLOY, "flower-superlink", "lab"),
        Act(DEPLOY, "/absolute/path", "lab", words={"/absolute/path": "{scene}/lab"}),
        Act(DEPLOY, "mode=central", "fedsink", interrupted="is pending since 30 s"),
    ),
    "masked sums": (
        Act(DEPLOY, "CN=lab-ca", "lab"),
        Act(DEPLOY, "flower-superlink", "lab"),
        Act(DEPLOY, "/absolute/path", "lab", words={"/absolute/path": "{scene}/lab"}),
        *(
            act
            for ward in (0, 1, 2)
            for act in (
                Act(
                    POLICY, "[data]", f"ward{ward}", words={"719": "479"},
                    brings=pictures(ward, 3),
                ),
                Act(NODE, "ssh-keygen", f"ward{ward}"),
                Act(DEPLOY, "supernode register", "lab", takes=(f"ward{ward}/node-key.pub",)),
                Act(MASKED, "fedsink node key", f"ward{ward}"),
            )
        ),
        *(
            act
            for ward in (0, 1, 2)
            for act in (
                Act(MASKED, "FIRST\"\n", f"ward{ward}", words=PEERS),
                Act(MASKED, "[aggregation]", f"ward{ward}"),
                Act(
                    NODE, "fedsink node policy", f"ward{ward}", takes=("lab/ca.crt",),
                    words={"client=0": f"client={ward}", "clients=2": "clients=3"},
                ),
            )
        ),
        Act(MASKED, "noise.share", "fedsink"),
        Act(MASKED, "authority.pem", "authority", words={"ed25519:FIRST": PEERS["ed25519:FIRST"]}),
    ),
    "a lean node": (Act(NODE, "./packages/core", "fedsink"),),
    TUTORIAL: (Act(TUTORIAL, folder="fedsink"),),
    PLUGIN: (Act(PLUGIN, folder="fedsink"),),
    FLOWER: (
        Act(
            FLOWER,
            folder="fedsink/examples/flower-digits",
            words={"FOLDER": re.compile(r"Generator and guarantee: (\S+)")},
        ),
    ),
    GUARDED: (Act(GUARDED, folder="fedsink/examples/guarded-fedavg", brings=_mnist),),
    "README.md": (Act("README.md", folder="fedsink"),),
    "docs/compare.md": (Act("docs/compare.md", folder="fedsink"),),
    "docs/debugging.md": (Act("docs/debugging.md", folder="fedsink"),),
    "docs/cluster.md": (
        Act("docs/cluster.md", words={"HEAD": "127.0.0.1", "/shared": "{scene}/shared"}),
    ),
    "docs/data.md": (
        Act("docs/data.md", "image_folder", words={"DIR": "pictures"}, brings=_pictures),
        Act("docs/data.md", "femnist", words={"DIR": "leaf"}, brings=_writers),
    ),
    "docs/index.md": (Act("docs/index.md", folder="fedsink"),),
    "docs/install.md": (Act("docs/install.md", folder="fedsink"),),
    "docs/measuring.md": (Act("docs/measuring.md", folder="fedsink"),),
    "docs/papers.md": (Act("docs/papers.md", folder="fedsink"),),
}  # fmt: skip

# Scenes without this environment on the PATH: their pages install one.
BARE: tuple[str, ...] = (
    "README.md",
    "a lean node",
    "docs/index.md",
    "docs/install.md",
    "docs/papers.md",
)

# Seconds that a scene may take, where 600 are not enough.
LIMITS: dict[str, int] = {
    **dict.fromkeys(("a deployment", "a lean node", "masked sums", TUTORIAL), 1200),
    **dict.fromkeys(
        (
            "docs/compare.md",
            "docs/evaluation.md",
            "docs/guide.md",
            "docs/install.md",
            "docs/papers.md",
            FLOWER,
            GUARDED,
        ),
        1800,
    ),
}

# The blocks in no scene: page, and what each of them needs, in order. A GPU, Docker, several
# machines, files that cannot be downloaded, and hours are all that a machine of ours lacks.
NO_SCENE: dict[str, tuple[str, ...]] = {
    "docs/cluster.md": ("files", "machines"),
    "docs/papers.md": ("GPU",),
    "docs/experiments.md": ("hours", "files"),
    "docs/engines.md": ("GPU",),
    "docs/gs_wgan.md": ("files",),
    "docs/guide.md": ("files",),
    "docs/ldp.md": ("files",),
    "docs/measuring.md": ("hours", "hours"),
    "docs/node.md": ("Docker",),
}

# Programs of pages that no index for Python has, and the Debian packages that have them.
_PROGRAMS = {
    "nginx": "nginx-light",
    "openssl": "openssl",
    "socat": "socat",
    "ssh-keygen": "openssh-client",
}
_NOTES = re.compile(r"medium|slow|shown|no scene|(?:serves|says|fails|file|added to): \S.*|")
_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<note>[^\n]*) -->\n)?^(?P<margin> *)```(?P<language>\w*)[^\n]*\n"
    r"(?P<text>.*?)^(?P=margin)```$",
    re.M | re.S,
)
_COMMAND = re.compile(r"^ *(\$ )?(fedsink|make|pip|python3?|docker|flwr|flower-\w+|ray) ", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block, the comment before it (or empty), and the paragraph before both."""

    language: str
    text: str
    note: str
    before: str

    @property
    def kind(self) -> str:
        return self.note.partition(":")[0]

    @property
    def about(self) -> str:
        return self.note.partition(":")[2].strip()


def blocks(page: str) -> list[Block]:
    """Blocks of a page that a shell or Python can run, and those that a note makes part of it."""
    text = (ROOT / page).read_text()
    return [
        Block(
            found["language"],
            textwrap.dedent(found["text"]),
            found["note"] or "",
            text[: found.start()].rstrip().rpartition("\n\n")[2],
        )
        for found in _BLOCK.finditer(text)
        if found["language"] in ("bash", "python") or found["note"]
    ]


def played(act: Act) -> list[Block]:
    return [
        block
        for block in blocks(act.page)
        if act.has in block.text and block.kind != "no scene" and _NOTES.fullmatch(block.note)
    ]


_NAMED = {act.page for acts in SCENES.values() for act in acts}
ACTS = {page: (Act(page),) for page in PAGES if page not in _NAMED} | SCENES
ACTS = {name: acts for name, acts in ACTS.items() if any(played(act) for act in acts)}


class Stage:
    """The readers of a scene, their terminals, and the servers that run until it ends."""

    def __init__(
        self, acts: tuple[Act, ...], folder: Path, bare: bool = False, limit: float = 600
    ) -> None:
        self.folder = folder
        self.bare = bare
        self.deadline = time.monotonic() + limit
        self.said = ""
        self.seconds: list[tuple[str, float]] = []
        self._servers: list[tuple[Block, subprocess.Popen[bytes], Path]] = []
        (folder / "home").mkdir()
        (folder / "terminals").mkdir()
        self._ray = tempfile.mkdtemp(prefix="ray-")  # short, for the sockets in it
        forgotten = ("XDG_", "FLWR_HOME", "FLWR_LOG_LEVEL")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(forgotten)}
        texts = [block.text for act in acts for block in played(act)]
        self.makes_its_own = any("-m venv" in text for text in texts)
        self.environment = {
            **kept,
            "PATH": self._path(any("pip install" in text for text in texts)),
            "HOME": str(folder / "home"),
            "COLUMNS": "100",
            "PYTHONUNBUFFERED": "1",  # as in a terminal
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": self._ray,  # Ray looks for a head's address there, and leaves its own
            **_way_to_an_index(),
        }

    def play(self, act: Act) -> None:
        folder = self.folder / act.folder
        if act.folder.split("/")[0] == "fedsink" and not (self.folder / "fedsink").exists():
            check_out(self.folder / "fedsink", installed=not self.makes_its_own)
        folder.mkdir(parents=True, exist_ok=True)
        for name in act.takes:
            shutil.copy(self.folder / name, folder)
        if act.brings is not None:
            act.brings(folder)
        unused = set(act.words)
        for block in played(act):
            text = block.text
            for word, value in {**act.words, **READERS}.items():
                whole = rf"(?<![A-Za-z0-9_]){re.escape(word)}(?![A-Za-z0-9_])"
                if re.search(whole, text):
                    unused.discard(word)
                    new = self._value(word, value)
                    text = re.sub(whole, lambda _, new=new: new, text)
            begun = time.monotonic()
            self._do(act, folder, block, text)
            self.seconds.append((text.splitlines()[0][:60], time.monotonic() - begun))
        for _, process, log in self._servers:
            assert process.poll() is None, f"a server has ended:\n{self._shown('', log)}"
        assert not unused, f"no block of {act.page} has the words {sorted(unused)}"

    def end(self) -> None:
        """Ends what the scene has started: it is known by its HOME."""
        for number, patience in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 20.0)):
            deadline = time.monotonic() + patience
            for _, process, _ in self._servers:
                with _gone():
                    os.killpg(process.pid, number)
            for pid in self._running():
                with _gone():
                    os.kill(pid, number)
            while self._running() and time.monotonic() < deadline:
                for _, process, _ in self._servers:
                    process.poll()
                time.sleep(0.2)
        shutil.rmtree(self._ray, ignore_errors=True)

    def _value(self, word: str, value: str | re.Pattern[str]) -> str:
        if isinstance(value, str):
            return value.format(scene=self.folder)
        found = value.findall(self.said)
        assert found, f"nothing has printed {word}: {value.pattern}"
        return str(found[-1])

    def _do(self, act: Act, folder: Path, block: Block, text: str) -> None:
        if block.kind == "shown":
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            said = " ".join(self.said.split())
            missing = [line for line in lines if " ".join(line.split()) not in said]
            assert not missing, f"{act.page} shows what nothing has printed: {missing}"
            return
        terminal = self.folder / "terminals" / (act.folder.replace("/", "-") or "reader")
        where = terminal.with_suffix(".folder")
        here = Path(where.read_text().rstrip("\n")) if where.exists() else folder
        if block.kind in ("file", "added to"):
            path = here / block.about.replace("~", self.environment["HOME"])
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w" if block.kind == "file" else "a") as file:
                file.write(text)
            return
        if block.language == "python":
            text = f"python - <<'END_OF_PYTHON'\n{text}\nEND_OF_PYTHON"
        # Bash's own variables cannot be set; the terminal's others are as they were left.
        begin = f"[ ! -e {terminal} ] || . {terminal} 2>/dev/null || true\nset -euo pipefail\n"
        if block.kind != "serves":
            begin += (
                f'trap \'declare -p | grep -vE "^declare -[a-zA-Z]*r|BASH" >{terminal}; '
                f"pwd >{where}' EXIT\n"
            )
        log = self.folder / f"said-{len(self.seconds):02}.txt"
        with log.open("wb") as said:
            process = subprocess.Popen(
                ["bash", "-c", begin + text], cwd=here, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                start_new_session=True,
                # A terminal's programs hear Ctrl-C, also where these tests run in the background.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )  # fmt: skip
        if block.kind == "serves":
            self._servers.append((block, process, log))
            self._wait(process, log, lambda: block.about in log.read_text(errors="replace"), text)
            return
        if act.interrupted:
            words = act.interrupted
            self._wait(process, log, lambda: words in log.read_text(errors="replace"), text)
            os.killpg(process.pid, signal.SIGINT)
        self._wait(process, log, lambda: process.poll() is not None, text)
        output = log.read_text(errors="replace")
        self.said += output
        failed = block.kind == "fails" or bool(act.interrupted)
        right = (process.returncode != 0) == failed and block.about in output
        assert right, f"{act.page} ends with status {process.returncode}:\n{self._shown(text, log)}"

    def _wait(
        self, process: subprocess.Popen[bytes], log: Path, done: Callable[[], bool], text: str
    ) -> None:
        while not done():
            ended = process.poll() is not None and not done()
            late = time.monotonic() > self.deadline
            if ended or late:
                why = f"ended with {process.returncode}" if ended else "took too long"
                raise AssertionError(f"the block {why}:\n{self._shown(text, log)}")
            time.sleep(0.1)

    def _shown(self, text: str, log: Path) -> str:
        """A block, the end of what it said, and the ends of what the servers said."""
        parts = [text, log.read_text(errors="replace")[-2500:]]
        for server, process, said in self._servers:
            state = f"ended with {process.returncode}" if process.poll() is not None else "serves"
            parts += [
                f"--- {state}: {server.text.splitlines()[0]}",
                said.read_text(errors="replace")[-1500:],
            ]
        return "\n".join(parts)

    def _path(self, installs: bool) -> str:
        ours = Path(sysconfig.get_path("scripts"))
        path = [p for p in os.environ["PATH"].split(os.pathsep) if Path(p) != ours]
        if self.bare:
            return os.pathsep.join(path)
        if installs:  # into an environment above this one, which stays as it is
            upper = self.folder / "environment"
            venv.create(upper, with_pip=True)
            site = Path(sysconfig.get_path("purelib", vars={"base": str(upper)}))
            (site / "below.pth").write_text(
                "".join(f"{p}\n" for p in (str(ROOT), *(p for p in sys.path if "-packages" in p)))
            )
            for script in ours.iterdir():
                text = script.read_bytes()[:10_000]
                if text.startswith(b"#!") and not (upper / "bin" / script.name).exists():
                    rest = text.partition(b"\n")[2]
                    (upper / "bin" / script.name).write_bytes(
                        f"#!{upper / 'bin' / 'python'}\n".encode() + rest
                    )
                    (upper / "bin" / script.name).chmod(0o755)
            ours = upper / "bin"
        return os.pathsep.join((str(ours), *path, "/usr/sbin"))

    def _running(self) -> list[int]:
        mark = b"HOME=" + str(self.folder / "home").encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                continue
        return found


def check_out(folder: Path, *, installed: bool) -> None:
    """The tree under test, without what git ignores; `installed`: its .venv is this one."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    if installed:  # with stamps, so that make installs nothing into it
        (folder / ".venv").mkdir()
        for path in Path(sys.prefix).iterdir():
            if not path.name.startswith(".installed"):
                (folder / ".venv" / path.name).symlink_to(path)
        for stamp in (".installed", ".installed-dev"):
            (folder / ".venv" / stamp).touch()


def _way_to_an_index() -> dict[str, str]:
    """How this machine's user reaches an index of packages: no matter of the reader's HOME."""
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    for name in (".config/pip/pip.conf", ".pip/pip.conf"):
        if (home / name).is_file():
            return {"PIP_CONFIG_FILE": str(home / name)}
    return {}


@contextmanager
def _gone() -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        return


@contextmanager
def _alone(kinds: set[str]) -> Iterator[None]:
    """Pages name their ports: one scene with servers at a time."""
    if "serves" not in kinds:
        yield
        return
    with (Path(tempfile.gettempdir()) / f"fedsink-scenes-{os.getuid()}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _kinds(acts: tuple[Act, ...]) -> set[str]:
    return {block.kind for act in acts for block in played(act)}


def _marks(acts: tuple[Act, ...]) -> list[pytest.MarkDecorator]:
    kinds = _kinds(acts)
    if kinds & {"slow", "serves"} or any(act.folder for act in acts):
        return [pytest.mark.slow]
    return [pytest.mark.medium] if "medium" in kinds else []


@pytest.mark.timeout(7200)  # a scene may have to wait for another; LIMITS holds it to its own time
@pytest.mark.parametrize(
    "scene", [pytest.param(name, marks=_marks(acts)) for name, acts in ACTS.items()]
)
def test_a_scene_goes_as_its_pages_say(
    scene: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    acts = ACTS[scene]
    text = "\n".join(block.text for act in acts for block in played(act))
    for program, package in _PROGRAMS.items():
        found = shutil.which(program) or shutil.which(f"/usr/sbin/{program}")
        if re.search(rf"^ *(sudo )?{program}\b", text, re.M) and not found:
            pytest.skip(f"{scene} needs {program}: install Debian's package {package}")
    with _alone(_kinds(acts)):
        stage = Stage(acts, tmp_path, scene in BARE, LIMITS.get(scene, 600))
        try:
            for act in acts:
                stage.play(act)
        finally:
            stage.end()
            for first, seconds in stage.seconds:
                record_property(first, f"{seconds:.1f} s")


_PAGE = """
```bash
cd "$HOME" && mkdir work && cd work && word=DIR
```
Write this to `deep/file.toml`:
<!-- file: deep/file.toml -->
```toml
name = "HOST"
```
<!-- added to: deep/file.toml -->
```toml
again = "HOST"
```
In another terminal:
<!-- serves: ready 127.0.0.1 -->
```bash
cat deep/file.toml && echo ready HOST && sleep 99
```
<!-- fails: no such thing -->
```bash
pwd; echo "run $word-7"; echo no such thing; false
```
<!-- says: seven -->
```bash
echo seven
```
It says
<!-- shown -->
```
run pictures-7
```
```python
print("run NAME")
```
"""


def _played(page: str, folder: Path, limit: float = 30, **keys: object) -> Stage:
    (folder / "page.md").write_text(page)
    given = {"words": {"DIR": "pictures", "NAME": re.compile(r"run \S+-(\d)")}, **keys}
    act = Act(str(folder / "page.md"), **given)  # type: ignore[arg-type]
    stage = Stage((act,), folder, limit=limit)
    try:
        stage.play(act)
        assert bool(stage._running()) == ("serves" in page)
    finally:
        stage.end()
        assert stage._running() == []
        assert not Path(stage._ray).exists()
    return stage


@pytest.mark.medium
def test_a_scene_executes_the_text_of_its_blocks(tmp_path: Path) -> None:
    stage = _played(_PAGE, tmp_path)
    work = tmp_path / "home" / "work"
    assert stage.said == f"{work}\nrun pictures-7\nno such thing\nseven\nrun 7\n"
    assert (work / "deep" / "file.toml").read_text() == 'name = "127.0.0.1"\nagain = "127.0.0.1"\n'
    assert len(stage.seconds) == 8
    (tmp_path / "two").mkdir()
    page = "```bash\ntrap 'echo stopped; exit 3' INT; echo DIR NAME-1; echo run x-1; sleep 9\n```\n"
    words = {"DIR": "a", "NAME": "b"}
    stage = _played(page, tmp_path / "two", interrupted="run x-1", words=words)
    assert stage.said == "a b-1\nrun x-1\nstopped\n"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("cd work", "cd wrok", "ends with status 1"),
        ("sleep 99", "sleep 0.1", "a server has ended"),
        ("sleep 99", "kill $$", "ended with -15"),
        ("echo ready", "echo late", "took too long"),
        ("no such thing; false", "no such thing", "ends with status 0"),
        ("echo no such thing", "echo nothing", "ends with status 1"),
        ("echo seven", "echo eight", "ends with status 0"),
        ("run pictures-7", "run pictures-8", "shows what nothing has printed"),
        ("run NAME", "run", r"no block of .* has the words \['NAME'\]"),
        ("$word-7", "$word", "nothing has printed NAME|shows what nothing"),
    ],
)
def test_a_scene_fails_where_the_text_is_wrong(
    old: str, new: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=why):
        _played(_PAGE.replace(old, new), tmp_path, limit=1 if "long" in why else 30)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_in_a_scene_or_says_what_it_needs(page: str) -> None:
    wrong = [block.note for block in blocks(page) if not _NOTES.fullmatch(block.note)]
    assert wrong == []
    shown = [block for acts in ACTS.values() for act in acts for block in played(act)]
    left = [b for b in blocks(page) if b not in shown and _NOTES.fullmatch(b.note)]
    assert [b.text for b in left if b.kind != "no scene"] == []
    needs = NO_SCENE.get(page, ())
    assert len(left) == len(needs), [block.text for block in left]
    for block, thing in zip(left, needs, strict=True):
        assert re.search(rf"needs?\b[^.]*\b{re.escape(thing)}\b", block.before), block.before


def test_the_tables_name_pages_and_scenes_that_are_there() -> None:
    assert {act.page for acts in SCENES.values() for act in acts} <= set(PAGES)
    assert all(played(act) for acts in SCENES.values() for act in acts)
    assert set(BARE) | set(LIMITS) <= set(ACTS)
    things = ("Docker", "GPU", "machines", "files", "hours")
    assert {need for needs in NO_SCENE.values() for need in needs} <= set(things)
    assert set(NO_SCENE) <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_no_command_hides_in_another_kind_of_block(page: str) -> None:
    text = (ROOT / page).read_text()
    others = [
        found["text"]
        for found in _BLOCK.finditer(text)
        if found["language"] != "bash" and found["note"] != "shown"
    ]
    indented = re.findall(r"(?:^\n|\A)((?: {4}[^\n]+\n)+)", _BLOCK.sub("", text), re.M)
    assert [part for part in (*others, *indented) if _COMMAND.search(part)] == []
