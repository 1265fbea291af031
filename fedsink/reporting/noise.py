"""How noise was drawn, for privacy.json."""

from __future__ import annotations

from fedsink.privacy.randomness.keys import EntropyKey, ReproducibleKey, SecretKey

_NOISE = {
    ReproducibleKey.kind: (
        "reproducible",
        "Noise and batches are computed from the published seed, so that the run can be repeated. "
        "Whoever knows the seed can subtract the noise: the guarantee describes the mechanism, and "
        "this run demonstrates it on data that needs no protection.",
    ),
    SecretKey.kind: (
        "secret",
        "Noise and batches are drawn with a key from the operating system that lies outside the "
        "run folder, readable by its owner alone, and is bound to run, client and request.",
    ),
    EntropyKey.kind: (
        "secure",
        "Noise is drawn by OpenDP's float-safe samplers from the operating system's randomness; "
        "no key exists from which it could be computed again.",
    ),
    "node": (
        "node",
        "Each node's owner chooses how its noise is drawn, in a policy file that the server never "
        "sees.",
    ),
}


def noise_entries(kind: str) -> dict[str, str]:
    """The entries `noise` and `noise_meaning`.

    Args:
        kind: of the clients' noise key, or "node" where each node's owner decides.
    """
    name, meaning = _NOISE[kind]
    return {"noise": name, "noise_meaning": meaning}
