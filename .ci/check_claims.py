"""Compares the claims of the documents with the records and with the papers' figures.

Usage: check_claims.py [ROOT]

The script compares every generated table of results with the present records; the sentences below,
filled with figures of records and papers, with the documents that state them; and every percentage
of README.md with these sentences. A listed sentence that is missing from its document is a
difference: change both.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from result_protocol import standing  # noqa: E402
from result_rows import CLASSIFIERS, PAGES, declared, mean, measured, page, published  # noqa: E402

MEASURED_AT = "cpu"

_ROWS = {
    "new_ten": "MNIST, ε = 10, ten clients",
    "new_ten_bare": "MNIST, ε = 10, ten clients, bare",
    "new_one": "MNIST, ε = 10, a curator",
    "new_one_60": "MNIST, ε = 10, a curator, 60,000 pictures",
    "new_eps1": "MNIST, ε = 1, a curator",
    "new_eps1_60": "MNIST, ε = 1, a curator, 60,000 pictures",
    "new_ten_eps1": "MNIST, ε = 1, ten clients",
    "new_laplace": "MNIST, LDP, Laplace, ε = 35",
    "new_thousand": "MNIST, ε = 10, 1,000 clients, shared noise",
    "new_fashion_60": "Fashion, ε = 10, a curator, 60,000 pictures",
    "pooled_ten": "ε = 10, 10 clients",
    "pooled_ten_60": "ε = 10, 10 clients, 60,000 pictures",
    "pooled_hundred": "ε = 10, 100 clients",
    "pooled_thousand": "ε = 10, 1000 clients",
    "pooled_ten_eps1": "ε = 1, 10 clients",
    "pooled_hundred_eps1": "ε = 1, 100 clients",
    "pooled_thousand_eps1": "ε = 1, 1000 clients",
    "glyphs_02": "ε = 0.2, from glyphs",
    "glyphs_005": "ε = 0.05, from glyphs",
    "softer_005": "ε = 0.05, λ = 40, from glyphs",
    "softer_nothing_005": "ε = 0.05, λ = 40, from nothing",
    "thousand_nothing": "ε = 1, 1000 clients, own noise, from nothing",
    "thousand_glyphs": "ε = 1, 1000 clients, own noise, from glyphs",
    "faint_nothing": "ε = 0.2, 1000 clients, own noise, from nothing",
    "faint_glyphs": "ε = 0.2, 1000 clients, own noise, from glyphs",
    "local_glyphs": "LDP, Gaussian, ε = 10, from glyphs",
    "local_nothing": "LDP, Gaussian, ε = 10, from nothing",
    "ten_nothing_02": "ε = 0.2, 10 clients, own noise, from nothing",
    "fashion_eps1": "Fashion, ε = 1, one curator, convolutional",
    "half_hour": "MNIST, m = 1, half an hour",
    "half_hour_fashion": "Fashion, m = 1, half an hour",
    "other_shapes": "shapes, ε = 1, from other shapes",
    "nothing_02": "ε = 0.2, from nothing",
    "nothing_005": "ε = 0.05, from nothing",
    "thousand": "ε = 10, 1000 clients, noise of their own",
    "hundred": "MNIST, ε = 10, 100 clients",
    "free": "MNIST, convolutional, not private",
    "free_60": "MNIST, convolutional, not private, 60,000 pictures",
    "critics": "MNIST, GS-WGAN, ε = 10, 10 clients",
    "published_critics": "Fashion, GS-WGAN as published, reduced",
    "weights": "noise on the weights' gradient, 40 clients",
    "pictures": "noise on the images' gradient, 40 clients, the same otherwise",
    "laplace_mlp": "MNIST, Laplace, ε = 35",
    "gauss_mlp": "MNIST, Gaussian, ε = 35",
    "gauss": "MNIST, Gaussian, ε = 35, convolutional",
}
"""Rows that sentences quote, by the names they have there. Papers' entries have their own keys."""

CLAIMS = {
    "README.md": (
        "central, ten clients, ε = 10 | {new_ten.cnn} % ({new_ten_bare.cnn} % bare) | "
        "{cao_mnist_m1.cnn} % (DP-Sinkhorn), {dpdm_mnist_eps10.cnn} % (DPDM)",
        "central, one curator, ε = 10 | {new_one.cnn} % | "
        "{cao_mnist_m1.cnn} % (DP-Sinkhorn), {dpdm_mnist_eps10.cnn} % (DPDM)",
        "central, 1,000 clients, shared noise, ε = 10 | {new_thousand.cnn} % | "
        "{cao_mnist_m1.cnn} %, {dpdm_mnist_eps10.cnn} %",
        "central, ten clients, ε = 1 | {new_ten_eps1.cnn} % | {dpdm_mnist_eps1.cnn} % (DPDM)",
        "ldp, Laplace noise, ε = 35 | {new_laplace.cnn} % | none with labels",
    ),
    "docs/notebook/gs-wgan.md": ("reads {critics.triple} (seed 0",),
    "docs/gs_wgan.md": (
        "publish {chen_mnist.triple} (LogReg / MLP / CNN; Tables 1 and A1)",
        "reads {critics.triple} (seed 0",
    ),
    "docs/public-start.md": (
        "one curator, ε = 0.2 | {nothing_02.cnn} | {glyphs_02.cnn} |",
        "one curator, ε = 0.05 | {nothing_005.cnn} | {glyphs_005.cnn} |",
        "`experiment=mnist_curator_eps005` | {softer_nothing_005.cnn} | {softer_005.cnn} |",
        "`experiment=mnist_eps1_k1000` | {thousand_nothing.cnn} | {thousand_glyphs.cnn} |",
        "the same, ε = 0.2 | {faint_nothing.cnn} | {faint_glyphs.cnn} |",
        "Gaussian noise, ε = 10 | {local_nothing.cnn} | {local_glyphs.cnn} |",
    ),
    "docs/notebook/local.md": (
        "Gaussian, ε = 35 ({gauss_mlp.cnn} → {gauss.cnn} on the test set, seed 0",
        "Laplace noise ({laplace_mlp.cnn} with seed 0 → {new_laplace.cnn} over three seeds)",
    ),
    "docs/results.md": (
        "MNIST, ε = 10, ten clients | {new_ten.cnn} ({new_ten_bare.cnn} bare) | "
        "{cao_mnist_m1.cnn} (DP-Sinkhorn), {dpdm_mnist_eps10.cnn} (DPDM) |",
        "MNIST, ε = 10, one curator, 60,000 pictures | {new_one_60.cnn} | "
        "{cao_mnist_m1.cnn}, {dpdm_mnist_eps10.cnn} |",
        "MNIST, ε = 1, ten clients | {new_ten_eps1.cnn} | {dpdm_mnist_eps1.cnn} (DPDM) |",
        "MNIST, ε = 1, one curator, 60,000 pictures | {new_eps1_60.cnn} | {dpdm_mnist_eps1.cnn} |",
        "Fashion-MNIST, ε = 10, one curator, 60,000 pictures | {new_fashion_60.cnn} | "
        "{cao_fashion_m1.cnn}, {dpdm_fashion_eps10.cnn} |",
        "MNIST, ε = 10, 1,000 clients, shared noise | {new_thousand.cnn} | "
        "{cao_mnist_m1.cnn}, {dpdm_mnist_eps10.cnn} |",
        "MNIST, local mode, Laplace noise, ε = 35 | {new_laplace.cnn} | none with labels |",
        "one curator's CNN reads {new_one_60.cnn} on MNIST at ε = 10",
        "and {new_eps1_60.cnn} at ε = 1",
        "where DPDM (Acc) publishes {dpdm_mnist_eps10.cnn} and {dpdm_mnist_eps1.cnn}",
        "on Fashion-MNIST at ε = 10 {new_fashion_60.cnn}, {gap} less than its "
        "{dpdm_fashion_eps10.cnn}",
        "three seeds read {published_critics.triple}",
        "reads {weights.triple} with forty clients",
        "under the same settings {pictures.triple}",
        "{half_hour.cnn} (MLP {half_hour.mlp} of {cao_mnist_m1.mlp}), "
        "{half_hour_fashion.cnn} | noise on MNIST",
        "reads {half_hour.triple} on MNIST",
        "and {half_hour_fashion.triple} on Fashion-MNIST",
        "less ({other_shapes.cnn}) | not found",
        "{new_fashion_60.cnn}, {fashion_eps1.cnn} | the loss on batches",
        "{glyphs_02.cnn}, {softer_005.cnn} from glyphs | noise",
        "ten clients, ε = 0.2: 92.5 | {ten_nothing_02.cnn} |",
        "{thousand_glyphs.cnn}, {faint_glyphs.cnn} from glyphs | noise",
        "ε = 10: 90 | {local_glyphs.cnn} from glyphs |",
        "reads {free.cnn}, and {free_60.cnn} with 60,000 pictures",
        "with noise it reads {new_one.cnn} and {new_one_60.cnn}",
        "a hundred read {hundred.cnn} with their own, and a thousand {thousand.cnn}",
        "ten clients read {pooled_ten.cnn}, a hundred {pooled_hundred.cnn} and a thousand "
        "{pooled_thousand.cnn}, where "
        "one curator reads {new_one.cnn}",
        "ten read {pooled_ten_60.cnn} with 60,000 pictures",
        "At ε = 1 ten read {pooled_ten_eps1.cnn}, a hundred {pooled_hundred_eps1.cnn} and a "
        "thousand {pooled_thousand_eps1.cnn}, where one curator reads {new_eps1.cnn}",
        "LogReg, MLP and CNN are at hand here: {chen_mnist.triple}",
    ),
}


def main() -> int:
    """Prints the number of differences, and each of them. Returns 1 if there is any."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    found = list(differences(root))
    for difference in found:
        print(f"check_claims: {difference}", file=sys.stderr)
    rows = sum(len(table.rows) for table in declared(root / "benchmarks" / "rows.yaml"))
    sentences = sum(map(len, CLAIMS.values()))
    print(f"claims: {rows} rows, {sentences} sentences: {len(found)} differences")
    return 1 if found else 0


def differences(root: Path) -> Iterator[str]:
    """Yields each claim of a document that records and papers contradict, a sentence each."""
    records = measured(root / "benchmarks" / "measured.jsonl")
    tables = declared(root / "benchmarks" / "rows.yaml")
    for table in tables:
        path = root / PAGES / f"{table.name}.md"
        text = path.read_text() if path.is_file() else ""
        wanted = page(table, records, MEASURED_AT)
        for line in sorted(set(wanted.splitlines()) - set(text.splitlines())):
            yield f"{PAGES / path.name} lacks the line of its records: {line}"
        if wanted != text:
            yield f"{PAGES / path.name} is not what its records make."
    figures = _figures(tables, records)
    for name, claims in CLAIMS.items():
        words = _flat((root / name).read_text())
        for claim in claims:
            if (sentence := claim.format(**figures)).lower() not in words.lower():
                yield f"{name} does not say, as records and papers do: {sentence}"
    readme = _flat((root / "README.md").read_text())
    stated = " ".join(claim.format(**figures) for claim in CLAIMS["README.md"])
    for percentage in sorted(
        set(re.findall(r"\d+\.\d %", readme)) - set(re.findall(r"\d+\.\d %", stated))
    ):
        yield f"README.md states {percentage}, which no record is compared with."


def _figures(tables: list[Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    rows = {row.name: row for table in tables if "cnn" in table.figures for row in table.rows}
    figures: dict[str, Any] = {}
    for key, name in _ROWS.items():
        row = rows[name]
        arguments = row.arguments(MEASURED_AT, 0)[:-1]
        command = " ".join(["fedsink simulate", *arguments])
        held, _ = standing([r for r in records if row.shows(r, command)], arguments)
        figures[key] = _shown(held)
    for key, entry in published().items():
        figures[key] = SimpleNamespace(**entry.accuracy, triple=entry.triple)
    gap = figures["dpdm_fashion_eps10"].cnn - float(figures["new_fashion_60"].cnn)
    return {**figures, "gap": f"{gap:.1f}"}


def _shown(records: list[dict[str, Any]]) -> SimpleNamespace:
    """Means as tables show them: `logreg`, `mlp`, `cnn`, and all three in `triple`."""
    means = {key: mean(records, key) for key in CLASSIFIERS}
    shown = {key: "–" if value is None else f"{value:.1f}" for key, value in means.items()}
    return SimpleNamespace(**shown, triple=" / ".join(shown.values()))


def _flat(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
