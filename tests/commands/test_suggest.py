from __future__ import annotations

import re
import shlex

import pytest

from fedsink.commands.simulate import run as simulate
from fedsink.commands.suggest import run
from fedsink.conf.acting import compose_config
from fedsink.configuration import Configuration
from fedsink.errors import FedsinkError
from fedsink.protocol.requests import UNNAMED
from fedsink.strategies.methods import settings_of

OWN = ["data=image_folder", "data.shape=[3,32,32]", "data.classes=[cat,dog]"]
COUNTED = [*OWN, "data.nominal_records=50000"]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[str], str]:
    """The overrides of the command that is printed, and all that is printed."""
    assert run(arguments) == 0
    out = capsys.readouterr().out
    words = shlex.split(out.partition("\n\n")[0].replace("\\\n", " "))
    assert words[:2] == ["fedsink", "simulate"]
    return words[2:], out


@pytest.mark.medium
@pytest.mark.quick("arguments2")
@pytest.mark.parametrize(
    "arguments",
    [
        ["data=shapes", "eps=3"],
        ["data=digits", "clip=record", "clients=100"],
        ["data=mnist", "mode=ldp", "mechanism=gaussian", "eps=10"],
        ["data=shapes", "mode=ldp", "conditional=false"],
        [*COUNTED, "clients=20"],
        ["data=shapes", "eps=inf"],
        ["data=shapes", "eps=3", "clip=batch"],
    ],
)
def test_the_command_it_prints_can_be_typed(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    overrides, out = said(capsys, *arguments)
    suggested = settings_of(Configuration.read(compose_config(overrides)), UNNAMED)
    if "data=shapes" in arguments and "eps=3" in arguments:  # it follows the rule by itself
        assert suggested == settings_of(Configuration.read(compose_config(arguments)), UNNAMED)
    assert overrides[: len(arguments)] == arguments
    for word in overrides[len(arguments) :]:
        key, _, value = word.partition("=")
        assert value == "DIR" or re.search(rf"^{re.escape(key)} +{re.escape(value)} ", out, re.M)


@pytest.mark.medium
def test_the_label_gets_its_share_where_there_are_labels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def shares(*more: str) -> list[str]:
        overrides, _ = said(capsys, "data=digits", "mode=ldp", *more)
        return [word for word in overrides if word.startswith("mechanism.label_eps=")]

    assert [float(word.partition("=")[2]) > 0.0 for word in shares()] == [True]
    assert shares("conditional=false") == []


@pytest.mark.medium
def test_it_reads_no_data_and_no_file_has_to_be_there(capsys: pytest.CaptureFixture[str]) -> None:
    overrides, _ = said(capsys, *COUNTED)
    assert "data.root=DIR" in overrides
    assert "data.root=DIR" not in said(capsys, *COUNTED, "data.root=/no/such/folder")[0]


@pytest.mark.slow
def test_what_is_stated_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    overrides, out = said(capsys, "data=shapes", "rate=0.07", "strategy.rows=9")
    assert [word for word in overrides if word.startswith(("rate", "strategy.rows"))] == [
        "rate=0.07", "strategy.rows=9",
    ]  # fmt: skip
    assert "√(N/C)/4" not in out


@pytest.mark.medium
def test_it_says_whether_noise_limits(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, *COUNTED, "eps=3", "clients=1")[1]
    assert "Noise limits where (N/C)·μ/√K, here 17,978, is below 2500" in out


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (OWN, r"data\.nominal_records must be given"),
        (["data=half_circle"], r"The rule is for pictures, and data\.shape=\[2\] is a point's"),
        (["data=shapes", "strategy=gs_wgan"], "says nothing of strategy=gs_wgan"),
        (["data=shapes", "epss=1"], r"Unknown key 'epss'\. Did you mean eps"),
        (["data=shapes", "eps=0"], "eps must be a finite number > 0"),
        (["shapes"], "'shapes' is not of the form key=value"),
    ],
)
def test_messages(arguments: list[str], message: str) -> None:
    with pytest.raises(FedsinkError, match=message):
        run(arguments)


NO_SIZES = {
    "data.shape": ["32", "null", "[]", "[3,0,32]", "[3,32.5,32]", "[3,32]", "true", "x", "[a,b,c]"],
    "data.classes": ["cat", "[]", "3", "null", "[a,a]", "[true,false]", "[1.0]", "[null]", "[[a]]"],
    "data.nominal_records": ["0", "-1", "x", "null", "1.5", "true", "[5]", "nan", "inf"],
    "clients": ["0", "-1", "x", "null", "1.5", "true", "[1]", "nan"],
    "conditional": ["x", "3", "null", "[true]"],
    "delta": ["x", "-1", "2", "null", "nan", "true", "[0.1]"],
    "eps": ["x", "-1", "0", "nan", "[1]"],
}


@pytest.mark.medium
@pytest.mark.parametrize(
    ("key", "mode"),
    [
        ("data.shape", "central"),
        *(pytest.param(key, "ldp", marks=pytest.mark.slow) for key in NO_SIZES),
        *(
            pytest.param(k, "central", marks=pytest.mark.slow)
            for k in NO_SIZES
            if k != "data.shape"
        ),
    ],
)
def test_a_public_size_that_is_none_is_refused_by_its_key(key: str, mode: str) -> None:
    """The error does not name settings that follow from the size by the rule."""
    stated = (*COUNTED, f"mode={mode}", "data.root=/nowhere")
    others = [word for word in stated if not word.startswith(f"{key}=")]
    for value in NO_SIZES[key]:
        for command in (run, simulate):
            with pytest.raises(FedsinkError) as refused:
                command([*others, f"{key}={value}"])
            text = str(refused.value)
            assert text.startswith(key), text
            assert "\n" not in text
