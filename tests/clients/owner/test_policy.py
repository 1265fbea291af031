from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsink.clients.answers.dp_sinkhorn import DPSinkhornAnswer
from fedsink.clients.answers.privatize_once import PrivatizeOnceAnswer
from fedsink.clients.answers.registry import ANSWERS
from fedsink.clients.owner.policy import Aggregation, Policy, PolicyRefusedError
from fedsink.clients.owner.policy_file import WORDS, TomlTable, read_policy
from fedsink.data.maps import PointBall
from fedsink.errors import ConfigError
from fedsink.privacy import BatchClip
from fedsink.privacy.adjacency import ADJACENCIES
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeRequest
from fedsink.protocol.signing import shown_key

Make = Callable[..., GradientRequest]
KEYS = [shown_key(bytes([number + 7] * 32)) for number in range(3)]
LOCAL = LocalPlan("laplace", PointBall("l1", 1.0, 4), 3.0, 0.0, 1.0, 3)
TEXT = """
[data]
lineage = "ward-7-scans"
name = "tiny"
root = "scans"
shape = [4]
classes = ["a", "b", "c"]
nominal_records = 61
[state]
folder = "state"
[noise]
backend = "fast"
[budget.add-remove]
epsilon = 10.0
delta = 1e-5
[budget.replace-one]
epsilon = 35.0
delta = 1e-4
[allow]
mechanisms = ["clipped-gaussian", "laplace", "gaussian", "randomized-response"]
minimum_noise_multiplier = 0.5
maximum_clip_bound = 1.0
maximum_images = 10
maximum_rate = 0.5
"""
BUDGETS = TEXT[TEXT.index("[budget.add") : TEXT.index("[allow]")]

Write = Callable[..., Policy]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Loads the policy above with lines replaced: {old: new}."""

    def load(changes: dict[str, str] | None = None, more: str = "") -> Policy:
        text = TEXT
        for old, new in (changes or {}).items():
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "policy.toml"
        path.write_text(text + more)
        return read_policy(path)

    return load


def test_a_policy_is_read_with_paths_from_its_own_folder(write: Write, tmp_path: Path) -> None:
    policy = write()
    assert policy.lineage == "ward-7-scans"
    assert policy.data.root == str(tmp_path / "scans")
    assert (policy.data.shape, policy.data.classes) == ((4,), ("a", "b", "c"))
    assert policy.data.download is False
    assert policy.data.range is None
    assert write({"= 61": "= 61\nrange = [0, 4095]"}).data.range == (0.0, 4095.0)
    assert policy.ledger == tmp_path / "state" / "ledger.sqlite"
    assert (policy.noise, policy.on_change) == ("fast", "inherit")
    assert (policy.budgets["add-remove"].epsilon, policy.budgets["add-remove"].delta) == (10, 1e-5)
    assert policy.budgets["replace-one"].epsilon == 35.0
    assert policy.allowed.labels is None
    assert not policy.allowed.capacity


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"[noise]": "[nose]"}, r"policy.toml: noise is missing; it must be a table"),
        ({"[state]": "[extra]\n[state]"}, r"policy.toml: unknown key 'extra'"),
        ({"lineage =": "linage ="}, r"policy.toml \[data\]: lineage is missing"),
        ({"root =": "rooot ="}, r"\[data\]: unknown key 'rooot'. Did you mean root\? Keys: "),
        ({'"ward-7-scans"': '""'}, r"\[data\]: lineage must be a non-empty text"),
        ({'"ward-7-scans"': "7"}, r"\[data\]: lineage must be a non-empty text, not 7"),
        ({"[4]": "4"}, r"\[data\]: shape must be a list of whole numbers, not 4"),
        ({"[4]": "[true]"}, r"\[data\]: shape must be a list of whole numbers"),
        ({"[4]": "[0]"}, r"policy.toml: data.shape must be"),
        ({"= 61": "= 61.5"}, r"nominal_records must be a whole number ≥ 0, not 61.5"),
        ({"= 61": '= 61\nrange = "4095"'}, r"\[data\]: range must be a list of numbers, not '40"),
        ({"= 61": "= 61\nrange = [true, 4]"}, r"\[data\]: range must be a list of numbers"),
        ({"= 61": "= 61\nrange = [4095, 0]"}, r"policy.toml: data.range must be \[BLACK,WHITE"),
        ({"= 61": "= 61\nrange = [0, inf]"}, r"policy.toml: data.range must be \[BLACK,WHITE"),
        ({"= 61": "= 61\ndownload = 1"}, r"download must be true or false, not 1"),
        ({"= 61": '= 61\non_change = "ask"'}, r"on_change is inherit or refuse, not 'ask'"),
        ({'"fast"': '"slow"'}, r"\[noise\]: backend is secure or fast, not 'slow'"),
        ({"add-remove": "addremove"}, r"\[budget\]: unknown key 'addremove'. Did you mean add-rem"),
        ({"epsilon = 10.0": ""}, r"\[budget.add-remove\]: epsilon is missing; it must be a number"),
        ({"epsilon = 10.0": "epsilon = true"}, r"epsilon must be a number ≥ 0, not True"),
        ({"epsilon = 10.0": "epsilon = inf"}, r"epsilon must be a number ≥ 0, not inf"),
        ({"epsilon = 10.0": "epsilon = nan"}, r"epsilon must be a number ≥ 0, not nan"),
        ({"epsilon = 10.0": f"epsilon = 1{'0' * 400}"}, r"epsilon must be a number ≥ 0, not 1000"),
        ({"epsilon = 10.0": f"epsilon = 1{'0' * 5000}"}, r"policy.toml is no TOML file: Exceeds"),
        ({"epsilon = 10.0": "epsilon = 0"}, r"\[budget.add-remove\]: epsilon must be a finite"),
        (
            {"epsilon = 10.0": 'epsilon = 10\nadmission = "reserve"'},
            r"\[budget.add-remove\]: admission is no key any more: each plan is charged whole",
        ),
        ({"epsilon = 35.0": "epsilon = 35\norder = 8"}, r"order is no key any more: the Rényi fil"),
        (
            {"epsilon = 10.0": "epsilon = 10\nrounds_per_reservation = 50"},
            r"rounds_per_reservation is no key any more: .*, and name those .* \[operators.keys\]",
        ),
        (
            {"maximum_rate": "runs_per_day = 3\nmaximum_rate"},
            r"\[allow\]: runs_per_day is no key any more: .* name those .* \[operators.keys\]",
        ),
        ({"maximum_rate": "maximum_rates"}, r"\[allow\]: unknown key 'maximum_rates'. Did you"),
        ({"minimum_noise_multiplier = 0.5": ""}, r"minimum_noise_multiplier is missing"),
        ({"maximum_images = 10": "maximum_images = -1"}, r"maximum_images must be a whole number"),
        ({'"laplace"': '"laplacian"'}, r"mechanisms: 'laplacian' is none of clipped-gaussian"),
        ({"maximum_rate": 'labels = ["z"]\nmaximum_rate'}, r"labels: 'z' is not in data.classes"),
        ({"maximum_rate": 'capacity = "yes"\nmaximum_rate'}, r"capacity is required or optional"),
        ({"[budget.replace-one]\nepsilon = 35.0\ndelta = 1e-4\n": ""}, r"need a \[budget.replace"),
        (
            {"maximum_rate": "secure_aggregation = true\nmaximum_rate"},
            r"\[allow\]: secure_aggregation must be a non-empty text, not True",
        ),
        (
            {"maximum_rate": 'secure_aggregation = "yes"\nmaximum_rate'},
            r"secure_aggregation is refused or untrusted or masked or trusted, not 'yes'",
        ),
        ({"[data]": "[data"}, r"policy.toml is no TOML file"),
        ({BUDGETS: "[budget]\n"}, "at least one of add-remove, replace-one, user, client"),
        # A key of its own, which is much like the missing one, is no mistyped one.
        ({"maximum_cl": "minimum_cl"}, r"maximum_clip_bound is missing; it must be .* ≥ 0\.$"),
    ],
)
def test_a_mistake_is_an_error_that_names_file_and_key(
    write: Write, changes: dict[str, str], message: str
) -> None:
    """A misspelt limit would limit nothing."""
    with pytest.raises(ConfigError, match=message):
        write(changes)


REQUIRED_KEYS = {
    "data": ("lineage", "name", "shape", "classes", "nominal_records"),
    "state": ("folder",),
    "noise": ("backend",),
    "budget.add-remove": ("epsilon", "delta"),
    "allow": ("mechanisms", "minimum_noise_multiplier", "maximum_clip_bound", "maximum_images"),
}


def _mistyped(key: str) -> set[str]:
    """A key with a letter left out, doubled, exchanged or changed, in capitals, with hyphens."""
    places = range(len(key))
    return {
        *(key[:i] + key[i + 1 :] for i in places),
        *(key[:i] + key[i] + key[i:] for i in places),
        *(key[:i] + key[i + 1 : i + 2] + key[i] + key[i + 2 :] for i in places),
        *(key[:i] + "z" + key[i + 1 :] for i in places),
        *(key.upper(), key.title(), key.replace("_", "-"), key + "s"),
    } - {key}


@pytest.mark.parametrize(
    ("table", "key"), [(table, key) for table, keys in REQUIRED_KEYS.items() for key in keys]
)
def test_a_mistyped_key_that_must_be_there_is_recognised(
    write: Write, table: str, key: str
) -> None:
    for wrong in _mistyped(key):
        with pytest.raises(ConfigError) as refused:
            write({f"[{table}]\n": f"[{table}]\n", f"\n{key} =": f'\n"{wrong}" ='})
        text = str(refused.value)
        assert f"policy.toml [{table}]: {key} is missing; it must be" in text
        assert text.endswith(f"There is {wrong!r}: did you mean {key}?")


@pytest.mark.parametrize("table", ["data", "state", "noise", "allow"])
def test_a_mistyped_table_is_recognised(write: Write, table: str) -> None:
    for wrong in _mistyped(table):
        with pytest.raises(ConfigError, match=rf"'{wrong}': did you mean {table}\?"):
            write({f"[{table}]": f'["{wrong}"]'})


def test_every_key_of_a_policy_is_among_its_words(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken = set()
    take = TomlTable.take

    def noted(table: TomlTable, key: str, *more: Any) -> Any:
        if table._where not in ("operators.keys", "app.metrics"):
            taken.add(key)
        return take(table, key, *more)

    monkeypatch.setattr(TomlTable, "take", noted)
    (tmp_path / "peers.toml").write_text(f'0 = "{KEYS[0]}"')
    write({"[allow]": f"{CLIENTS}[allow]"}, more=BY_PEERS + APP)
    limits = {key for name in ANSWERS.own for key in ANSWERS[name].limits}
    assert taken - limits <= set(WORDS)
    assert set(WORDS) - taken <= {*ADJACENCIES, "operators", "keys"}


CLIENTS = "[budget.client]\nepsilon = 5.0\ndelta = 1e-4\n"
APP = """
[app]
job = "update"
client = "quickstart.client_app:app"
rounds = 10
delta = 1e-5
clip_bound = 1.0
noise_multiplier = 4.0
metric_noise_multiplier = 20.0
[app.config]
local-epochs = 2
[app.metrics]
accuracy = [0, 1]
loss = [0.0, 5.0]
"""
GUARDED = f"""
[data]
lineage = "ward-7-scans"
nominal_records = 61
[state]
folder = "state"
[noise]
backend = "fast"
{CLIENTS}{APP}"""


def guarded(folder: Path, changes: dict[str, str] | None = None) -> Policy:
    text = GUARDED
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "policy.toml"
    path.write_text(text)
    return read_policy(path)


def test_an_app_that_is_not_fedsinks_needs_no_words_about_fedsinks(
    tmp_path: Path, make_request: Make
) -> None:
    policy = guarded(tmp_path)
    app = policy.app
    assert app is not None
    assert (app.client, app.config) == ("quickstart.client_app:app", {"local-epochs": 2})
    assert app.metrics == {"accuracy": (0.0, 1.0), "loss": (0.0, 5.0)}
    assert app.plan is not None
    assert (app.plan.noise_std, app.plan.rounds, app.plan.unit) == (4.0, 10, "client")
    assert app.metrics_plan is not None
    assert app.metrics_plan.noise_std == pytest.approx(20.0)  # of each, of two that move by √2
    with pytest.raises(PolicyRefusedError, match=r"allow\.mechanisms"):
        policy.check_mechanism("clipped-gaussian")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({'"update"': '"updates"'}, r"\[app\]: job is update or records, not 'updates'"),
        ({"rounds = 10": ""}, r"\[app\]: rounds is missing"),
        ({"rounds = 10": "rounds = 0"}, r"\[app\]: rounds must be .* ≥ 1"),
        ({"delta = 1e-5": "delta = 0"}, r"\[app\]: delta = 0 is not in \(0, 0.0001\]"),
        ({"delta = 1e-5": "delta = 1e-3"}, r"\[app\]: delta = 0.001 is not in"),
        ({"clip_bound = 1.0": ""}, r"\[app\]: clip_bound is missing"),
        ({"clip_bound = 1.0": "clip_bound = 0"}, r"\[app\]: bound must be a finite number > 0"),
        ({"noise_multiplier = 4.0": "noise_multiplier = 0"}, r"\[app\]: sigma must be a finite"),
        (
            {"\nnoise_multiplier = 4.0": "\nnoise_multiplier = 1"},
            r"a job costs ε = 17.9, above the budget's: a",
        ),
        ({"metric_noise_multiplier = 20.0": ""}, r"metric_noise_multiplier is missing"),
        ({"[0, 1]": "[1, 0]"}, r"\[app.metrics\]: accuracy must be \[low, high\]"),
        ({"[0, 1]": "[0, inf]"}, r"\[app.metrics\]: accuracy must be \[low, high\]"),
        ({"[0, 1]": "[0]"}, r"\[app.metrics\]: accuracy must be \[low, high\]"),
        ({"rounds = 10": 'rounds = 10\nsecure_aggregation = "masked"'}, "unmask no sum"),
        (
            {"rounds = 10": 'rounds = 10\nsecure_aggregation = "untrusted"'},
            "protects no single rep",
        ),
        ({"rounds = 10": 'rounds = 10\nsecure_aggregation = "trusted"'}, "share is missing"),
        ({"rounds = 10": "rounds = 10\nshare = 3"}, "share, at least 1, is for job"),
        ({"rounds = 10": "rounds = 10\nlayer = true"}, "unknown key 'layer'. Did you mean layers"),
        ({'"update"': '"records"'}, r"charged under add-remove: add a \[budget.add-remove\]"),
        (
            {CLIENTS: CLIENTS.replace("client", "add-remove"), '"update"': '"records"'},
            r"\[app\]: unknown key 'clip_bound'",
        ),
        ({"= 61": '= 61\non_change = "refuse"'}, "only the app sees the data"),
        ({"[app]": f'[operators.keys]\nlab = "{KEYS[0]}"\n[app]'}, "servers of Flower sign no req"),
        ({"nominal_records = 61": ""}, r"\[data\]: nominal_records is missing"),
        ({"= 61": '= 61\nname = "digits"'}, r"\[data\]: unknown key 'name'"),
        ({"[app]": "[ap]"}, r"\[app\]: job is missing"),
        ({"[app": "[ap"}, "allow is missing"),
    ],
)
def test_mistakes_in_the_table_of_an_app(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        guarded(tmp_path, changes)


def test_limits_of_the_central_mode_are_needed_where_it_is_allowed_alone(write: Write) -> None:
    names = '"clipped-gaussian", '
    policy = write({names: "", "minimum_noise_multiplier = 0.5\n": "", "maximum_images = 10\n": ""})
    PrivatizeOnceAnswer([PrivatizeRequest(LOCAL, 0, 5)]).check_policy(policy)


# What it refuses


@pytest.mark.parametrize(
    ("changes", "request_", "key"),
    [
        ({"= 10\n": "= 5\n"}, {}, "allow.maximum_images: the message holds 6 images"),
        ({"multiplier = 0.5": "multiplier = 0.6"}, {}, "minimum_noise_multiplier: σ = 0.5"),
        ({}, {"bound": 1.1}, "allow.maximum_clip_bound: Δ = 1.1"),
        (
            {"maximum_rate": "minimum_clip_bound = 1.01\nmaximum_rate"},
            {},
            "minimum_clip_bound: Δ = 1",
        ),
        ({"maximum_rate": "maximum_rounds = 49\nmaximum_rate"}, {}, "maximum_rounds: T = 50"),
        ({}, {"rate": 0.6}, "allow.maximum_rate: q = 0.6"),
        ({'"clipped-gaussian", ': ""}, {}, "allow.mechanisms: the message asks for clipped-gauss"),
        ({"1e-5": "1e-6"}, {}, "budget.add-remove.delta: the plan has δ = 1e-05"),
        ({"maximum_rate": 'capacity = "required"\nmaximum_rate'}, {}, "allow.capacity"),
        ({"maximum_rate": 'labels = ["a"]\nmaximum_rate'}, {}, "allow.labels"),
        (
            {"maximum_rate": 'labels = ["a"]\nmaximum_rate'},
            {"schedule": "class", "label": 1},
            "allow.labels: the message uses a class that is not listed",
        ),
    ],
)
def test_every_key_of_the_central_mode_is_enforced(
    write: Write, make_request: Make, changes: dict[str, str], request_: dict[str, Any], key: str
) -> None:
    usual = {"rate": 0.5, "sigma": 0.5, "bound": 1.0}
    if set(changes) - {"= 10\n"}:
        # The change is the reason for the refusal.
        DPSinkhornAnswer([make_request(**usual)]).check_policy(write())
    with pytest.raises(PolicyRefusedError, match=rf"policy.toml refuses by .*{key}"):
        DPSinkhornAnswer([make_request(**(usual | request_))]).check_policy(write(changes))


def test_a_share_of_the_noise_is_judged_as_the_owner_says(write: Write, make_request: Make) -> None:
    """minimum_noise_multiplier is 0.5; four clients share σ = 0.9, so one reply has 0.45."""
    request = replace(make_request(rate=0.5, sigma=0.9, rows=torch.zeros(3, 4)), share=4)

    def with_word(word: str) -> Policy:
        return write({"maximum_rate": f'secure_aggregation = "{word}"\nmaximum_rate'})

    for policy in (write(), with_word("refused")):
        DPSinkhornAnswer([replace(request, share=1)]).check_policy(policy)
        with pytest.raises(PolicyRefusedError, match=r"allow.secure_aggregation: .* 4 clients"):
            DPSinkhornAnswer([replace(request, share=1), request]).check_policy(policy)
    with pytest.raises(PolicyRefusedError, match=r"minimum_noise_multiplier: σ = 0.45"):
        DPSinkhornAnswer([request]).check_policy(with_word("untrusted"))
    DPSinkhornAnswer([replace(request, share=3)]).check_policy(with_word("untrusted"))  # 0.52
    DPSinkhornAnswer([request]).check_policy(with_word("trusted"))
    weak = replace(request, plan=replace(request.plan, noise_multiplier=0.4))
    with pytest.raises(PolicyRefusedError, match=r"minimum_noise_multiplier: σ = 0.4"):
        DPSinkhornAnswer([weak]).check_policy(with_word("trusted"))


def test_no_owner_answers_a_clip_of_somebodys_own(write: Write, make_request: Make) -> None:
    class Mine(BatchClip):
        name = "mine"

    request = make_request(rate=0.5, sigma=0.5, bound=1.0)
    DPSinkhornAnswer([request]).check_policy(write())
    mine = replace(request, plan=replace(request.plan, clip=Mine(1.0)))
    with pytest.raises(PolicyRefusedError, match=r"allow.mechanisms: clip=mine is somebody's own"):
        DPSinkhornAnswer([mine]).check_policy(write())


def test_limits_hold_for_the_whole_message_and_for_every_use(
    write: Write, make_request: Make
) -> None:
    policy = write()
    good, bad = make_request(rate=0.5), make_request(rate=0.9, rows=torch.zeros(2, 4))
    with pytest.raises(PolicyRefusedError, match="maximum_images: the message holds 12 images"):
        DPSinkhornAnswer([good, good]).check_policy(policy)
    with pytest.raises(PolicyRefusedError, match="maximum_rate"):
        DPSinkhornAnswer([good, bad]).check_policy(policy)


def test_an_adjacency_without_a_budget_is_refused(write: Write, make_request: Make) -> None:
    request = make_request(rate=0.5)
    request = replace(request, plan=replace(request.plan, adjacency="client"))
    with pytest.raises(PolicyRefusedError, match=r"budget.client: there is no such budget"):
        DPSinkhornAnswer([request]).check_policy(write())


def test_a_plan_for_fewer_records_than_the_owner_states_is_refused(
    write: Write, make_request: Make
) -> None:
    """A capacity's overflow is bounded for the plan's number of records, not for more."""
    request = make_request(rate=0.5, clip="record")
    for nominal, fits in ((61, True), (60, False)):
        plan = replace(request.plan, capacity=60, nominal_records=nominal)
        if fits:
            DPSinkhornAnswer([replace(request, plan=plan)]).check_policy(write())
            continue
        with pytest.raises(
            PolicyRefusedError, match=r"data.nominal_records: the plan accounts for"
        ):
            DPSinkhornAnswer([replace(request, plan=plan)]).check_policy(write())


@pytest.mark.parametrize(
    ("changes", "plan", "key"),
    [
        ({'"laplace", ': ""}, {}, "allow.mechanisms: the message asks for laplace"),
        ({', "randomized-response"': ""}, {}, "allow.mechanisms: .* randomized-response"),
        (
            {"1e-4": "1e-6"},
            {"mechanism": "gaussian", "map": PointBall("l2", 1.0, 4), "delta": 1e-5},
            "budget.replace-one.delta",
        ),
        ({"maximum_rate": 'labels = ["a", "b"]\nmaximum_rate'}, {}, "allow.labels"),
    ],
)
def test_every_key_of_the_local_mode_is_enforced(
    write: Write, changes: dict[str, str], plan: dict[str, Any], key: str
) -> None:
    request = PrivatizeRequest(replace(LOCAL, **plan), 0, 5)
    PrivatizeOnceAnswer([request]).check_policy(write())
    with pytest.raises(PolicyRefusedError, match=rf"policy.toml refuses by {key}"):
        PrivatizeOnceAnswer([request]).check_policy(write(changes))


MASKED = {"maximum_rate": 'secure_aggregation = "masked"\nmaximum_rate'}
BY_PEERS = '[aggregation]\npeers = "peers.toml"\nminimum_cohort = 3\n'


def test_the_table_of_aggregation(write: Write, tmp_path: Path) -> None:
    (tmp_path / "peers.toml").write_text("".join(f'{k} = "{key}"\n' for k, key in enumerate(KEYS)))
    allowed = write(MASKED, BY_PEERS + "threshold = 0.75\ntolerate_dropouts = 1").aggregation
    assert allowed is not None
    assert (allowed.minimum_cohort, allowed.threshold, allowed.tolerate_dropouts) == (3, 0.75, 1)
    assert allowed.trust.trusts(1, bytes([8] * 32), b"")
    assert not allowed.trust.trusts(2, bytes([8] * 32), b"")
    assert write(more=BY_PEERS).aggregation == Aggregation(allowed.trust, 3)
    assert write().aggregation is None


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("", r"secure_aggregation = 'masked' needs a table \[aggregation\]"),
        ('[aggregation]\npeers = "peers.toml"', "minimum_cohort is missing"),
        (BY_PEERS.replace("3", "2"), "minimum_cohort must be at least 3, not 2"),
        (BY_PEERS + "threshold = 0.5", "at least 2/3 and below 1, not 0.5"),
        (BY_PEERS + "threshold = 1", "at least 2/3 and below 1, not 1"),
        (BY_PEERS + f'authority = "{KEYS[0]}"', "give peers, or authority with the certificate"),
        ("[aggregation]\nminimum_cohort = 3", "give peers, or authority"),
        (BY_PEERS.replace("peers.toml", "none.toml"), "none.toml cannot be read"),
        (BY_PEERS.replace("peers.toml", "twice.toml"), "twice.toml: 0 and 1 have one key"),
        (BY_PEERS.replace("peers.toml", "wrong.toml"), "wrong.toml, a: 'b' is no public key"),
        (BY_PEERS.replace("peers.toml", "again.toml"), "'00' is not how a client's number is"),
        (BY_PEERS.replace("peers.toml", "named.toml"), "'a' is not how a client's number is"),
        (BY_PEERS.replace("peers.toml", "none of them.toml"), "must be lines NAME = "),
        (BY_PEERS + "minimum = 3", "unknown key 'minimum'"),
        (
            f'[aggregation]\nminimum_cohort = 3\nauthority = "{KEYS[0]}"\ncertificate = "ab"',
            "certificate is the text that fedsink node certify printed",
        ),
    ],
)
def test_mistakes_in_the_table_of_aggregation(
    write: Write, tmp_path: Path, table: str, told: str
) -> None:
    (tmp_path / "peers.toml").write_text(f'0 = "{KEYS[0]}"')
    (tmp_path / "twice.toml").write_text(f'0 = "{KEYS[0]}"\n1 = "{KEYS[0]}"')
    (tmp_path / "wrong.toml").write_text('a = "b"')
    (tmp_path / "named.toml").write_text(f'a = "{KEYS[0]}"')
    (tmp_path / "none of them.toml").write_text("")
    (tmp_path / "again.toml").write_text(f'0 = "{KEYS[0]}"\n00 = "{KEYS[1]}"')
    with pytest.raises(ConfigError, match=told):
        write(MASKED, table)
