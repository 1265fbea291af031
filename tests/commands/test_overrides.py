"""Keys as they are typed in a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from fedsink.commands.overrides import overrides, quoted
from fedsink.conf.loading import composed
from fedsink.errors import ConfigError


def _root(argument: str) -> object:
    (key,) = overrides([argument])
    return composed(["data=mnist", key]).data.root


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("/données/été", "/données/été"),
        ("/données du service/été 2026", "/données du service/été 2026"),
        ("/a b/c", "/a b/c"),
        ("/a=b/c", "/a=b/c"),
        ("~/scans", str(Path.home() / "scans")),
        ("~/scans d'été", None),
        ("'/données/été'", "/données/été"),
        ("数据", "数据"),
        ("null", None),
    ],
)
def test_a_plain_path_is_read_as_it_stands(typed: str, read: str | None) -> None:
    if "'été" in typed or typed.count("'") == 1:
        with pytest.raises(ConfigError, match="quote the value inside the argument"):
            _root(f"data.root={typed}")
    else:
        assert _root(f"data.root={typed}") == read


def test_what_hydra_can_read_is_left_to_it() -> None:
    typed = [
        "eps=1e1",
        "data.classes=[a,'b c']",
        "+x={a: 1}",
        "~policy",
        "data.root=${oc.env:HOME}",
    ]
    assert overrides(typed) == typed


@pytest.mark.parametrize("value", ["/scans (2)", "/d'été", '/"a"', "[chat,été]", "/a,/é", "$é"])
def test_advice_for_other_values_is_what_one_types(value: str) -> None:
    """The advice, given to a shell, makes the value one that is read as it stands."""
    with pytest.raises(ConfigError) as refused:
        overrides([f"data.root={value}"])
    text = str(refused.value)
    assert "token" not in text
    assert "\n" not in text
    advice = re.search(r"as in (.*); in a list", text)
    assert advice is not None
    (argument,) = shlex.split(advice[1])
    assert OverridesParser.create().parse_override(argument).value() == value


def test_a_folder_with_a_comma_is_no_sweep() -> None:
    with pytest.raises(ConfigError, match="stands for several runs: add --multirun, or") as refused:
        overrides(["data.root=/a,b"])
    assert quoted("data.root=/a,b") in str(refused.value)
    assert _root('data.root="/a,b"') == "/a,b"
    assert overrides(["eps=1,2"], sweep=True) == ["eps=1,2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eps=1", "eps=2"], "eps was given twice (eps=1 and eps=2): leave one of them out."),
        (["data=mnist", "seed=0", "data=digits"], "data was given twice (data=mnist and data=dig"),
        (["eps=1", "+eps=2"], "eps was given twice"),
        (["policy=x", "~policy"], "policy was given twice"),
        (["mode", "central"], "Keys are written key=value: mode=central, not mode central; see"),
        (["seed=0", "eps", "3", "k=1"], "Keys are written key=value: eps=3, not eps 3;"),
        (["eps"], "'eps' is not of the form key=value; see fedsink simulate --help."),
    ],
)
def test_what_is_no_set_of_keys_is_refused(arguments: Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        overrides(arguments)
    assert overrides(["data=mnist", "data.root=/x", "eps=1,2"], sweep=True)
