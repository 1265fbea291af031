from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsink.data.partition import (
    ByLabel,
    ByUser,
    Deal,
    Dirichlet,
    Iid,
    PartitionSpec,
    Unequal,
    manifest,
    partition,
    scheme_from_dict,
)
from fedsink.errors import ConfigError, DataError

LABELS = torch.arange(1000) % 10
SCHEMES = [Iid(), Dirichlet(0.5), ByLabel(2), Unequal(0.7)]


def check(parts: list[torch.Tensor], records: int, clients: int) -> None:
    assert len(parts) == clients
    assert all(part.dtype == torch.int64 and len(part) > 0 for part in parts)
    assert all(bool((part.diff() > 0).all()) for part in parts)
    assert torch.cat([*parts]).sort().values.tolist() == list(range(records))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_shards_are_disjoint_cover_everything_and_repeat(scheme: PartitionSpec) -> None:
    parts = partition(LABELS, 10, scheme, 3)
    check(parts, 1000, 10)
    again = partition(LABELS, 10, scheme, 3)
    other = partition(LABELS, 10, scheme, 4)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(parts, other, strict=True))


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    share=st.floats(0.01, 1.0),
    scheme=st.one_of(
        st.just(Iid()),
        st.builds(Dirichlet, st.floats(1e-3, 1e3)),
        st.builds(Unequal, st.floats(0.05, 1.0)),
    ),
    seed=st.integers(0, 2**32),
)
def test_every_scheme_serves_every_client(
    labels: list[int], share: float, scheme: PartitionSpec, seed: int
) -> None:
    clients = max(1, int(share * len(labels)))
    check(partition(torch.tensor(labels), clients, scheme, seed), len(labels), clients)


def test_small_alpha_is_skewed_and_large_alpha_is_not() -> None:
    def largest_share(alpha: float) -> float:
        parts = partition(LABELS, 10, Dirichlet(alpha), 0)
        return sum(float(torch.bincount(LABELS[p]).max()) / len(p) for p in parts) / 10

    assert largest_share(0.05) > 0.6
    assert largest_share(100.0) < 0.2


@pytest.mark.parametrize(("clients", "each"), [(5, 2), (10, 1), (10, 3), (7, 2), (40, 10)])
def test_by_label_limits_the_classes_of_a_client(clients: int, each: int) -> None:
    parts = partition(LABELS, clients, ByLabel(each), 0)
    check(parts, 1000, clients)
    assert max(len(LABELS[p].unique()) for p in parts) == each


@pytest.mark.parametrize(
    ("labels", "clients", "scheme", "sizes"),
    [
        (LABELS[:998], 10, Iid(), [100] * 8 + [99] * 2),
        (LABELS, 10, Dirichlet(1e-300), None),  # α vanishes, and every record is still dealt
        (LABELS, 3, ByLabel(99), None),  # more classes than there are
        (torch.arange(5).repeat(3), 2, ByLabel(5), [8, 7]),  # who has least gets what is left over
        (LABELS, 3, Unequal(sizes=(700, 299, 1)), [700, 299, 1]),
        (LABELS, 3, Unequal(0.5), [571, 286, 143]),
        (LABELS[:12], 10, Unequal(0.1), [3] + [1] * 9),  # no client is empty
    ],
    ids=["iid", "vanishing alpha", "all labels", "left over", "sizes", "geometric", "tiny ratio"],
)
def test_shards_have_the_stated_sizes(
    labels: torch.Tensor, clients: int, scheme: PartitionSpec, sizes: list[int] | None
) -> None:
    parts = partition(labels, clients, scheme, 0)
    check(parts, len(labels), clients)
    assert sizes is None or sorted(map(len, parts), reverse=True) == sizes


# --- whole users ---------------------------------------------------------------------------------


@given(
    users=st.lists(st.integers(0, 12), min_size=1, max_size=60),
    share=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**32),
)
def test_users_are_dealt_whole_and_in_equal_numbers(
    users: list[int], share: float, seed: int
) -> None:
    numbers = torch.tensor(users) * 2**58  # users' numbers fill 63 bits
    clients = max(1, int(share * len(set(users))))
    labels = torch.zeros(len(users), dtype=torch.int64)
    parts = partition(labels, clients, ByUser(), seed, users=numbers)
    check(parts, len(users), clients)
    held = [set(numbers[part].tolist()) for part in parts]
    assert sum(map(len, held)) == len(set(users))  # no user at two clients
    sizes = [len(group) for group in held]
    assert max(sizes) - min(sizes) <= 1


def test_there_is_one_user_a_client_where_there_are_as_many() -> None:
    users = torch.tensor([5, 5, 9, 5, 1, 9])
    parts = partition(torch.zeros(6, dtype=torch.int64), 3, ByUser(), 0, users=users)
    assert {frozenset(part.tolist()) for part in parts} == {
        frozenset({0, 1, 3}), frozenset({2, 5}), frozenset({4}),
    }  # fmt: skip


def test_who_holds_a_user_does_not_depend_on_the_order_of_the_records() -> None:
    users = torch.arange(1000) % 37
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(1000, dtype=torch.int64)
    parts = partition(labels, 5, ByUser(), 3, users=users)
    moved = partition(labels, 5, ByUser(), 3, users=users[order])
    for part, other in zip(parts, moved, strict=True):
        assert set(users[part].tolist()) == set(users[order][other].tolist())
    seeded = partition(labels, 5, ByUser(), 4, users=users)
    assert any(not torch.equal(a, b) for a, b in zip(parts, seeded, strict=True))


def test_by_user_needs_users_and_as_many_as_clients() -> None:
    with pytest.raises(ConfigError, match="by_user deals whole users, and this source tells none"):
        partition(LABELS, 3, ByUser(), 0)
    for clients in (8, 1001):  # more than users, and more than records
        message = f"{clients} clients cannot share 7 users; use at most 7 clients"
        with pytest.raises(DataError, match=message):
            partition(LABELS, clients, ByUser(), 0, users=torch.arange(1000) % 7)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_other_schemes_deal_records_whoever_their_users_are(scheme: PartitionSpec) -> None:
    parts = partition(LABELS, 10, scheme, 3)
    with_users = partition(LABELS, 10, scheme, 3, users=torch.arange(1000) // 100)
    assert all(torch.equal(a, b) for a, b in zip(parts, with_users, strict=True))


@pytest.mark.parametrize(
    ("scheme", "clients", "error", "message"),
    [
        (Iid(), 1001, DataError, "1001 clients cannot share 1000 records"),
        (Iid(), 0, ConfigError, "at least 1, got 0"),
        (ByLabel(2), 3, DataError, "3 clients with 2 labels each cannot hold 10 .* to 4 or"),
        (ByLabel(1), 1000, DataError, "some class has fewer records than clients"),
        (Unequal(sizes=(1, 2)), 3, ConfigError, "lists 2 clients, but there are 3"),
        ({"name": "random"}, 3, ConfigError, "'random' is unknown; choose one of by_label, "),
        ({"alpha": 1}, 3, ConfigError, "None is unknown"),
        ({"name": "dirichlet", "beta": 1}, 3, ConfigError, "no option 'beta'; it has alpha"),
        ({"name": "dirichlet", "alpha": 0.0}, 3, ConfigError, "alpha must be a positive .* not 0"),
        ({"name": "dirichlet", "alpha": float("nan")}, 3, ConfigError, "alpha must .* not nan"),
        ({"name": "by_label", "labels_per_client": 0}, 3, ConfigError, "of at least 1, not 0"),
        ({"name": "unequal", "ratio": 0.0}, 3, ConfigError, r"ratio must be in \(0, 1\], not 0.0"),
        ({"name": "unequal", "sizes": [1, -1.0]}, 3, ConfigError, "positive number, not -1.0"),
        ({"name": "iid", "beta": 1}, 3, ConfigError, "no option 'beta'; it has none"),
    ],
)
def test_messages(scheme: Any, clients: int, error: type[Exception], message: str) -> None:
    labels = torch.cat([LABELS[:-1], torch.tensor([10])]) if clients == 1000 else LABELS
    with pytest.raises(error, match=message):
        partition(labels, clients, scheme, 0)


@pytest.mark.parametrize(
    ("options", "scheme"),
    [
        ({"name": "iid"}, Iid()),
        ({"name": "dirichlet", "alpha": 0.1}, Dirichlet(0.1)),
        ({"name": "by_label", "labels_per_client": 3}, ByLabel(3)),
        ({"name": "unequal", "sizes": [1, 2]}, Unequal(sizes=(1, 2))),
        ({"name": "by_user"}, ByUser()),
    ],
)
def test_schemes_from_dicts_are_hashable_and_picklable(
    options: dict[str, Any], scheme: PartitionSpec
) -> None:
    assert scheme_from_dict(options) == scheme
    assert hash(scheme_from_dict(options)) == hash(scheme)
    assert pickle.loads(pickle.dumps(scheme)) == scheme


def test_manifest_counts_records_and_labels() -> None:
    labels = torch.tensor([0, 2, 2, 1])
    dealt = Deal(torch.arange(4), torch.tensor([2, 2]))
    described = manifest(dealt, labels, ("a", "b", "c"))
    assert described == {
        "clients": {
            "0": {"records": 2, "labels": {"a": 1, "b": 0, "c": 1}},
            "1": {"records": 2, "labels": {"a": 0, "b": 1, "c": 1}},
        }
    }
    assert json.loads(json.dumps(described)) == described


def test_a_manifest_tells_equal_neighbours_once() -> None:
    labels = torch.cat([torch.zeros(5000, dtype=torch.int64), torch.tensor([1, 1, 0])])
    dealt = Deal(torch.arange(5003), torch.tensor([*[1] * 5000, 2, 1]))
    assert manifest(dealt, labels, ("a", "b"))["clients"] == {
        "0-4999": {"records": 1, "labels": {"a": 1, "b": 0}},
        "5000": {"records": 2, "labels": {"a": 0, "b": 2}},
        "5001": {"records": 1, "labels": {"a": 1, "b": 0}},
    }


@pytest.mark.parametrize("clients", [1000, 1001, 100_000])
def test_a_manifest_of_many_different_clients_is_summed_up(clients: int) -> None:
    labels = torch.arange(clients + 7) % 10  # the last client has eight records
    sizes = [1] * (clients - 1) + [8]
    classes = [str(label) for label in range(10)]
    described = manifest(Deal(torch.arange(len(labels)), torch.tensor(sizes)), labels, classes)
    assert len(json.dumps(described, indent=2)) < 400_000
    if clients == 1000:
        assert [*described["clients"]] == [str(client) for client in range(1000)]
        return
    assert len(json.dumps(described)) < 500
    assert described == {
        "summary": {
            "meaning": "More than 1000 entries were needed, so that all clients are described "
            "together.",
            "clients": clients,
            "least_median_most": [1, 1, 8],
            "records": clients + 7,
            "labels": dict(zip(classes, labels.bincount().tolist(), strict=True)),
        }
    }
