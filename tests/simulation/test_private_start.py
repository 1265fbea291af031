"""Starts from a run on the same private data: what the second run promises, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from fedsink import DPSinkhorn, Federation
from fedsink.errors import ConfigError, FedsinkError
from fedsink.privacy import PrivacyPlan, RecordClip, composed_epsilon, plan_from_dict
from fedsink.results.pages.model_card import model_card
from fedsink.results.pages.page import number
from fedsink.results.pages.report_page import write_report
from fedsink.results.verification import CONSISTENT, REFUSED, UNPROTECTED, Verdict, verdict_on
from fedsink.server.folder import (
    RecordedRun,
    RunFolder,
    note_sums,
    sha256_of,
    store_config,
    stored_config,
)
from fedsink.server.starting_weights import stated_with
from fedsink.simulation.simulated_run import resume, start

from .conftest import killed_at, weights
from .test_public_start import composed, of_public, refused, stated

SECRET = ("seed=null", "rounds=2", "eps=0.1")


def begun(folder: Path, *keys: str) -> Path:
    """A run whose noise is secret."""
    return start(composed(*SECRET, *keys), folder)


def plan_of(table: dict[str, Any]) -> PrivacyPlan:
    values = {name: value for name, value in table["plan"].items() if name != "mode"}
    return plan_from_dict(values)  # type: ignore[return-value]


def by_dp_accounting(plans: Sequence[PrivacyPlan]) -> float:
    accountant = PLDAccountant()
    for plan in plans:
        accountant.compose(plan.event)
    return float(accountant.get_epsilon(1e-5))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A chain of three runs, each the start of the next, and one whose ε is added."""
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("chain")
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        first = begun(place / "first")
        second = begun(place / "second", "eps=0.2", f"start={first}")
        third = begun(place / "third", "eps=0.3", f"start={second}")
        added = begun(
            place / "added", "eps=0.3", f"start={first}", "start_plan=added", "delta=1e-6"
        )
        return {"first": first, "second": second, "third": third, "added": added}


@pytest.mark.medium
def test_eps_is_the_total_of_both_runs(runs: dict[str, Path]) -> None:
    first, second = stated(runs["first"]), stated(runs["second"])
    plans = [plan_of(first), plan_of(second)]
    assert second["start"]["plan"] == first["plan"]
    assert second["start"]["method"] == "dp_sinkhorn"
    assert second["start"]["generator_sha256"] == sha256_of(runs["first"] / "generator.safetensors")
    assert second["epsilon"] == pytest.approx(by_dp_accounting(plans), rel=1e-4)
    assert 0.199 < second["epsilon"] <= 0.2
    assert second["delta"] == 1e-5
    assert {entry["epsilon"] for entry in second["clients"]} == {second["epsilon"]}
    assert second["start"]["epsilons"] == [plan.epsilon() for plan in plans]
    assert second["epsilon_unamplified"] == composed_epsilon(plans, amplified=False)
    assert second["trade_off"]["mu"] > max(
        first["trade_off"]["mu"], 0.9 * stated(runs["third"])["trade_off"]["mu"] / 2
    )
    assert "it holds where this run's plan was fixed without looking" in second["protected"]
    lines = [json.loads(line) for line in (runs["second"] / "metrics.jsonl").open()]
    assert {line["epsilon"] for line in lines} == {second["epsilon"]}
    assert json.loads((runs["second"] / "metrics.json").read_text())["epsilon"] == second["epsilon"]


@pytest.mark.medium
def test_a_chain_composes(runs: dict[str, Path]) -> None:
    plans = [plan_of(stated(runs[name])) for name in ("first", "second", "third")]
    third = stated(runs["third"])
    assert third["epsilon"] == pytest.approx(by_dp_accounting(plans), rel=1e-4)
    assert 0.298 < third["epsilon"] <= 0.3
    assert third["start"]["start"] == stated(runs["second"])["start"]
    verdict = verdict_on(runs["third"])
    assert verdict.verdict == CONSISTENT
    assert verdict.starts == ["the same records by dp_sinkhorn"] * 2
    assert verdict.epsilons == {"pld": pytest.approx(third["epsilon"])}
    assert verdict_on(runs["second"]).verdict == CONSISTENT
    assert verdict_on(runs["first"]).starts == []


@pytest.mark.medium
def test_report_and_card_state_the_total_and_the_trade_off(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    for name in ("second", "added"):
        folder = shutil.copytree(runs[name], tmp_path / name)
        write_report(folder)
        page = (folder / "report.html").read_text()
        assert "dp_sinkhorn on the same records, plans of ε = " in page
        assert ("true positives, at most" in page) == (name == "second")
    run = RecordedRun.of(runs["second"])
    card = model_card(run, run.privacy or {}, run.result or {}, "mit")
    assert "ε = 0.2, δ = 1e-5 per record" in card
    assert "it holds where this run's plan was fixed without looking" in card
    assert "whose plan is counted" in card
    power = stated(runs["second"])["trade_off"]["true_positive_rate"]
    assert f"with a chance of at most {number(power)}; no test does better" in card


@pytest.mark.medium
def test_added_epsilons_and_deltas_are_sums(runs: dict[str, Path]) -> None:
    first, added = stated(runs["first"]), stated(runs["added"])
    plans = [plan_of(first), plan_of(added)]
    assert added["epsilon"] == pytest.approx(sum(plan.epsilon() for plan in plans))
    assert 0.298 < added["epsilon"] <= 0.3
    assert added["delta"] == pytest.approx(1.1e-5)
    assert "hold for any choice of a plan" in added["protected"]
    assert "trade_off" not in added
    verdict = verdict_on(runs["added"])
    assert (verdict.verdict, verdict.reasons) == (CONSISTENT, [])
    assert verdict.epsilons == {"summation": pytest.approx(added["epsilon"])}


@pytest.mark.medium
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["eps=0.09"], r"have spent ε = 0.09999 of the total eps=0.09, which leaves nothing"),
        (["eps=0.09", "start_plan=added"], "has spent ε = 0.09999 of the total eps=0.09"),
        (["delta=1e-6"], "has delta=1e-05, and this one 1e-06"),
        (["adjacency=client", "capacity=100", "eps=1000"], "has adjacency=add-remove, and this"),
        (
            ["adjacency=client", "capacity=100", "eps=1000", "start_plan=added"],
            "adjacency=add-remove, not client",
        ),
        (["clients=3"], "trained on private data with clients=2, and this run has 3"),
        (["partition.seed=5"], "with partition.seed=0, and this run has 5"),
        (["data.nominal_records=1500"], "with data.nominal_records=1437, and this run has 1500"),
        (["accountant=rdp"], "the rdp accountant has no bound"),
        (["start_plan=added", "accountant=rdp"], "whose ε is by accountant=pld"),
        (["noise.share=secure_aggregation", "strategy.schedule=joint"], "add their whole noise"),
        (["start_plan=summed"], "start_plan is composed or added"),
        (["ADDED"], "no total of loss distributions holds"),
    ],
)
def test_what_does_not_compose_is_refused(
    keys: list[str], words: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    source = runs["first"]
    if keys == ["ADDED"]:
        source, keys = runs["added"], ["delta=1e-6", "eps=9"]
        copied = shutil.copytree(source, tmp_path / "same")
        privacy = stated(copied)
        privacy["start"]["plan"]["delta"] = 1e-6
        (copied / "privacy.json").write_text(json.dumps(privacy))
        note_sums(copied)
        source = copied
    assert words in refused(tmp_path, "seed=null", "eps=0.2", *keys, f"start={source}")


@pytest.mark.medium
def test_a_start_whose_records_nobody_can_name_is_refused(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    alone = shutil.copytree(runs["second"] / "start", tmp_path / "alone")
    assert "no config.yaml says which" in refused(
        tmp_path, "seed=null", "eps=0.3", f"start={alone}"
    )
    (alone / "SHA256SUMS").unlink()
    assert "its run has not ended" in refused(tmp_path, "seed=null", "eps=0.3", f"start={alone}")


@pytest.mark.medium
def test_the_local_mode_composes_with_no_start(runs: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="composes in mode=central alone: begin mode=ldp with"):
        stated_with({"model": "ldp"}, runs["first"], "composed", None, {"mode": "ldp"})


@pytest.mark.medium
def test_reproducible_noise_of_a_start_leaves_nothing_protected(tmp_path: Path) -> None:
    first = start(composed("eps=0.1"), tmp_path / "first")
    second = begun(tmp_path / "second", "eps=0.2", f"start={first}")
    third = begun(tmp_path / "third", "eps=0.3", f"start={second}")
    for run in (second, third):
        assert stated(run)["noise"] == "reproducible"
        assert "can subtract that noise, and no record is protected" in stated(run)["noise_meaning"]
        verdict = verdict_on(run)
        assert (verdict.verdict, verdict.reasons) == (UNPROTECTED, [])


@pytest.mark.medium
def test_a_killed_run_continues_without_its_start_to_the_same_promise(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    first = shutil.copytree(runs["first"], tmp_path / "first")
    keys = composed("eps=0.2", f"start={first}", "report.checkpoint_seconds=0")
    whole = start(keys, tmp_path / "whole")
    killed_at(1, lambda: start(keys, tmp_path / "killed"))
    first.rename(tmp_path / "gone")
    assert weights(resume(tmp_path / "killed")) == weights(whole)
    assert stated(tmp_path / "killed") == stated(whole)


@pytest.mark.medium
def test_a_public_start_of_a_private_start_stays_in_the_chain(tmp_path: Path) -> None:
    public = start(of_public(), tmp_path / "public")
    first = begun(tmp_path / "first", f"start={public}")
    second = begun(tmp_path / "second", "eps=0.2", f"start={first}")
    assert 0.199 < stated(second)["epsilon"] <= 0.2
    verdict = verdict_on(second)
    assert verdict.verdict == CONSISTENT
    assert verdict.starts == ["public data glyphs", "the same records by dp_sinkhorn"]
    assert "that the first start saw public data alone" in verdict.unvouched


def _hidden(privacy: dict[str, Any]) -> None:
    del privacy["start"]


def _without_plan(privacy: dict[str, Any]) -> None:
    del privacy["start"]["plan"]


def _inner_without_plan(privacy: dict[str, Any]) -> None:
    del privacy["start"]["start"]["plan"]


def _inner_left_out(privacy: dict[str, Any]) -> None:
    del privacy["start"]["start"]


def _own_epsilon(privacy: dict[str, Any]) -> None:
    privacy["epsilon"] = privacy["start"]["epsilons"][-1]


def _more_noise(privacy: dict[str, Any]) -> None:
    privacy["start"]["plan"]["noise_multiplier"] *= 2


def _unprotected_start(privacy: dict[str, Any]) -> None:
    plan = privacy["start"]["plan"]
    plan |= {"unprotected": True, "kind": plan.pop("clip")["name"]}
    for name in ("noise_multiplier", "delta", "adjacency"):
        del plan[name]


def _added_first(privacy: dict[str, Any]) -> None:
    privacy["start"]["start_plan"] = "added"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (_hidden, "began with a start, and privacy.json states none"),
        (_without_plan, "names neither the plan of private records nor public data"),
        (_inner_without_plan, "names neither the plan of private records nor public data"),
        (_inner_left_out, "start/ holds another start than is stated"),
        (_own_epsilon, "states epsilon = "),
        (_more_noise, "states epsilon = "),
        (_unprotected_start, "names a plan that protects nothing"),
        (_added_first, "states epsilon = "),
    ],
)
def test_a_folder_that_hides_a_plan_is_refused(
    forge: Callable[[dict[str, Any]], None],
    words: str,
    runs: dict[str, Path],
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(runs["third"], tmp_path / "run")
    privacy = stated(folder)
    forge(privacy)
    (folder / "privacy.json").write_text(json.dumps(privacy))
    note_sums(folder)
    verdict = verdict_on(folder)
    assert verdict.verdict == REFUSED
    assert any(words in reason for reason in verdict.reasons), verdict.reasons


@pytest.mark.medium
def test_a_first_plan_that_is_left_out_everywhere_is_not_found_and_that_is_said(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What remains is the promise of the second plan alone."""
    from fedsink.commands.verify import run

    folder = shutil.copytree(runs["first"], tmp_path / "run")
    for name in ("generator.safetensors", "generator.json"):
        shutil.copyfile(runs["second"] / name, folder / name)
    note_sums(folder)
    found: Verdict = verdict_on(folder)
    assert (found.verdict, found.starts) == (CONSISTENT, [])
    assert run([f"run={folder}"]) == 0
    assert "It knows of no start: an earlier plan that is left out" in capsys.readouterr().out
    config = stored_config(RunFolder(folder))
    store_config(RunFolder(folder), config | {"start": "/elsewhere"})
    assert "states none" in str(verdict_on(folder).reasons)


@pytest.mark.medium
def test_a_federation_states_the_total_of_its_own_plans(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    images, labels = torch.rand(40, 1, 8, 8, generator=random), torch.arange(40) % 2
    federation = Federation(images, labels, clients=2, classes=2, nominal_records=40)
    how: dict[str, Any] = {"rate": 0.5, "clip": RecordClip(1.0), "delta": 1e-5, "rounds": 2}
    first = PrivacyPlan.solve(**how, eps=0.1)
    second = PrivacyPlan.solve(**how, eps=0.3, before=[first])
    quiet = {"pictures": 0, "html": False}
    one = federation.fit(DPSinkhorn("dct_mlp", first), tmp_path / "one", report=quiet)
    two = federation.fit(
        DPSinkhorn("dct_mlp", second), tmp_path / "two", report=quiet, start=one.folder
    )
    assert two.privacy["epsilon"] == composed_epsilon([first, second])
    assert 0.297 < two.privacy["epsilon"] <= 0.3
    assert verdict_on(tmp_path / "two").verdict == CONSISTENT
    with pytest.raises(FedsinkError, match="start_plan is composed or added"):
        federation.fit(DPSinkhorn("dct_mlp", second), start=one.folder, start_plan="sum")
