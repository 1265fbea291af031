from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hydra.core.override_parser.types import Quote, QuotedString
from hypothesis import given
from hypothesis import strategies as st

from fedsink.conf.acting import compose_config, composed_run
from fedsink.conf.loading import as_overrides, groups
from fedsink.reporting.typed import (
    HIDDEN,
    quoted_text,
    shown_settings,
    typed_command,
    typed_words,
)

PLACES = {
    "data.root": "FOLDER", "data.clients_file": "FILE", "policy": "FILE", "start": "FOLDER",
    "public.root": "FOLDER", "engine.address": "ADDRESS",
}  # fmt: skip


def command(overrides: list[str]) -> str:
    found = typed_command(composed_run(overrides)[0])
    assert found is not None
    return found


@pytest.mark.medium
@pytest.mark.quick("overrides0")
@pytest.mark.parametrize(
    "overrides",
    [
        ["mode=central", "eps=inf", "engine=ray", "seed=0", "engine.actors=7"],
        ["experiment=gs_wgan_published_digits", "scale=smoke"],
        ["mode=ldp", "mechanism=laplace", "eps=20", "map=l1_ball", "generator=dcgan"],
        ["mode=central", "data.classes=['a b','it\\'s','null','1','ü,}',a\\\\]"],
        ["mode=central", "+strategy.new='x y'", "delta=1e-7", "strategy.optimizer.betas=[0.1,1]"],
        ["mode=central", "~strategy.optimizer.ema"],
        ["eps=7", "sigma=null", "rounds=${clients}"],
        as_overrides({"mode": "ldp", "data": {"classes": ["a", "ü b"]}, "eps": 20.0}, groups()),
    ],
)  # fmt: skip
def test_the_command_gives_the_configuration_again(overrides: list[str]) -> None:
    words = shlex.split(command(overrides))
    assert words[:2] == ["fedsink", "simulate"]
    assert compose_config(words[2:]) == compose_config(overrides)


def test_what_was_typed_is_stored_word_for_word() -> None:
    overrides = ["mode=central", "eps=5", "seed=0", "engine.threads=2"]
    assert command(overrides) == f"fedsink simulate {' '.join(overrides)}"


def test_guarantee_no_place_and_nothing_about_the_folder_is_stored() -> None:
    table = "{file: '~/ward', names: [/srv/ward, 'C:/ward', b]}"
    typed = [
        *(f"{key}=ward 7/x:1" for key in PLACES), "hydra.run.dir=ward", "hydra/sweeper=ward",
        "public={root: ward, data: ward-is-no-place}", f"+generator.table={table}",
        "+generator.weights=/srv/ward", "+run.key_file=ward", "resume=ward", "+view.a=file:ward",
    ]  # fmt: skip
    words = typed_words(typed, {})
    assert words[: len(PLACES)] == [f"{key}={place}" for key, place in PLACES.items()]
    assert words[len(PLACES) :] == [
        "public={root:FOLDER,data:ward-is-no-place}",
        "+generator.table={file:PLACE,names:[PLACE,PLACE,b]}",
        "+generator.weights=PLACE",
        "+view.a=PLACE",
    ]
    kept = ["start=null", "engine.address=auto", "data.root=null"]
    assert typed_words(kept, {}) == kept


@given(st.text("\\'\"a\n{é"))
def test_text_is_quoted_as_hydra_quotes_it(text: str) -> None:
    mark = Quote.single if '"' in text else Quote.double
    assert quoted_text(text) == QuotedString(text, mark).with_quotes()


def test_a_reference_is_stored_as_its_value() -> None:
    assert typed_words(["rounds=${clients}", "data.root=${oc.env:HOME}"], {"rounds": 10}) == [
        "rounds=10", "data.root=null",
    ]  # fmt: skip


@pytest.mark.medium
def test_a_deployment_is_repeated_by_its_own_command() -> None:
    config = compose_config(["engine=deploy", "data.root=null", "mode=ldp", "eps=20"])
    config["run"] = {"typed": typed_words(["mode=ldp", "eps=20"], config)}
    stated = "fedsink deploy app=APP superlink=SUPERLINK mode=ldp eps=20"
    assert typed_command(config) == stated


@pytest.mark.parametrize("run", [None, {}, {"typed": None}, {"typed": "x"}, {"typed": [1]}, "x"])
def test_a_run_of_an_earlier_version_has_no_command(run: Any) -> None:
    assert typed_command({"run": run, "engine": {"name": "local"}}) is None


@pytest.mark.medium
def test_no_place_is_shown() -> None:
    config = compose_config(["mode=central", "data=mnist", "data.root=x", "engine=ray"])
    hostile = {
        "data.root": "/srv/ward 7/pictures", "data.clients_file": "/home/ann/users.csv",
        "policy": "~/policy.toml", "engine.address": "10.0.0.7:6379", "start": "ann/start",
    }  # fmt: skip
    for key, value in hostile.items():
        *tables, last = key.split(".")
        table = config
        for group in tables:
            table = table[group]
        table[last] = value
    config["generator"]["table"] = {"file": "/root/t"}
    config["generator"]["weights"] = "C:\\Users\\ann\\w.bin"
    config["view"]["files"] = ["/root/a", "b"]
    config["run"] = {"name": "n", "key_file": "/root/.local/state/fedsink/keys/n.key"}
    told = json.dumps(shown_settings(config))
    for part in ("/srv", "ward", "ann", "users.csv", "policy.toml", "10.0.0", "root/", ".key"):
        assert part not in told
    assert shown_settings(config)["data.root"] == HIDDEN
