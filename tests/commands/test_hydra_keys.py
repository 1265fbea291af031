"""Keys as they are typed in a shell."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedsink.commands.cli import main
from fedsink.commands.hydra_keys import overrides, quoted
from fedsink.conf.loading import composed
from fedsink.errors import ConfigError
from fedsink.registry import GONE
from fedsink.reporting.typed import quoted_text


def _root(argument: str) -> object:
    (key,) = overrides([argument])
    return composed(["data=mnist", key]).data.root


@pytest.mark.medium
def test_a_quoted_path_is_read_as_it_stands() -> None:
    for path in ("/données/été 2026", "/a b/c", "~/scans", "数据", "it's"):
        assert _root(f'data.root="{path}"') == path
        with_quotes = shlex.split(quoted(f"data.root={path}"))
        assert _root(*with_quotes) == path


def test_what_hydra_can_read_is_left_to_it() -> None:
    typed = ["eps=1e1", "data.classes=[a,'b c']", "+x={a: 1}", "~policy", "data.root=${oc.env:X}"]
    assert overrides(typed) == typed


@pytest.mark.medium
@pytest.mark.parametrize(
    "value",
    ["~/scans", "/données/été", "/scans (2)", "/d'été", '/"a"', "/a,/é", "$é", "{", "/é]", "[é",
     "${é", "é\\", "'é"],
)  # fmt: skip
def test_advice_for_other_values_is_what_one_types(value: str) -> None:
    """The advice, given to a shell, makes the value literal."""
    with pytest.raises(ConfigError) as refused:
        overrides([f"data.root={value}"])
    text = str(refused.value)
    assert "token" not in text
    assert "\n" not in text
    advice = re.search(r"as in (.*)\.$", text)
    assert advice is not None
    (argument,) = shlex.split(advice[1])
    assert _root(argument) == value


SIGNS = [*"é '\",5[]$({\\~=:#文", "${x}"]
NAMES = sorted(
    {*SIGNS, "null", "true", "1e3", "chat", "l'œuf", *(a + b for a in SIGNS for b in SIGNS)}
)


def _classes(argument: str) -> list[object]:
    """The classes that a simulation reads of one argument."""
    (key,) = overrides([argument])
    return list(composed(["data=image_folder", key]).data.classes)


def _pasted(advice: str) -> str:
    """Argument that bash gives to a command with the advice pasted behind it."""
    told = subprocess.run(["bash", "-c", f"printf %s {advice}"], capture_output=True, text=True)
    return told.stdout


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("[chat,l'œuf]", ["chat", "l'œuf"]),
        ("[chat (1),été,7]", ["chat (1)", "été", 7]),
        ("['tis,l'été]", ["'tis", "l'été"]),
        ("[a[1],b]", ["a[1]", "b"]),
        ('[a,,"b c",é,]', ["a", "b c", "é"]),
    ],
)
def test_the_advice_for_a_list_gives_its_names_when_pasted(typed: str, names: list[object]) -> None:
    with pytest.raises(ConfigError, match="are quoted inside the argument") as refused:
        overrides([f"data.classes={typed}"])
    advice = str(refused.value).partition(" as in ")[2].removesuffix(".")
    assert _classes(_pasted(advice)) == names


@pytest.mark.medium
def test_a_list_of_quoted_names_is_read_as_they_stand() -> None:
    """Names of one and two signs, all of them together and each by itself."""
    typed = f"data.classes=[{','.join(quoted_text(name) for name in NAMES)}]"
    assert _classes(typed) == NAMES


@pytest.mark.parametrize("key", ["data.classes", "data.shape"])
def test_a_list_without_brackets_gets_them(key: str) -> None:
    with pytest.raises(ConfigError, match="if it is one list, write it in brackets: ") as refused:
        overrides([f"{key}=3,8,8"])
    advice = str(refused.value).partition("brackets: ")[2].removesuffix(".")
    assert overrides([_pasted(advice)]) == [f"{key}=[3,8,8]"]


@pytest.mark.medium
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


@pytest.mark.medium
@pytest.mark.parametrize("gone", GONE)
def test_what_is_gone_is_refused_by_name_with_what_replaces_it(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = {"methods": "compare"}.get(gone, "simulate")
    with pytest.raises(SystemExit) as left:
        main([command, gone if "=" in gone else f"{gone}=x"])
    assert left.value.code == 2
    assert capsys.readouterr() == ("", f"fedsink: {GONE[gone]}\n")
    assert GONE[gone].startswith(f"{gone} is gone: ")
    assert not any(tmp_path.iterdir())
