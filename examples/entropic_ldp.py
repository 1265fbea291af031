"""The entropic Sinkhorn GAN on privatized records (Reshetova, Chen, Özgür 2024), for points.

    python examples/entropic_ldp.py     # the paper's half circle, in seconds

Every record gets noise once, at its client; training on the noisy records costs no ε, and the loss
that is matched to the noise removes it (Theorem 1). A training step is that of `fs.EntropicLDP`
(tests/examples/test_references.py).
"""

import math

import matplotlib.pyplot as plt
import torch

import fedsink as fs
from fedsink.data.maps import PointBall
from fedsink.privacy import Stream


def privatize(clients, f, mechanism, key):
    """Returns the noisy records Y of all clients, each client's in an order that tells nothing."""
    uploads = []
    for k, records in enumerate(clients):
        Y = mechanism.privatize(f(records), key.stream("image", client=k, round=0))
        uploads.append(Y[key.stream("order", client=k, round=0).permutation(len(Y))])
    return torch.cat(uploads)


def train(G, f, W, Y, draws, lr=2e-3, betas=(0.5, 0.99)):
    """Trains G in place on draws: the places of some records in Y, and latents z."""
    adam = torch.optim.Adam(G.parameters(), lr, betas)
    for places, z in draws:
        X = f(G(z, torch.zeros(len(z), dtype=torch.int64)))
        adam.zero_grad()
        W(X, Y[places]).backward()
        adam.step()


def main(picture="entropic_ldp.png", steps=1000, b=300, clients=10):
    angles = math.pi * torch.rand(5000)
    records = torch.stack([angles.cos(), angles.sin()], dim=1)
    f = PointBall("l1", radius=2.0)  # public: wide around the records
    noise = fs.Laplace(diameter=f.sensitivity, epsilon=12.0)
    Y = privatize(records.chunk(clients), f, noise, fs.NoiseKey.secret())
    G = fs.Mlp((2,), classes=1, latent_dim=8, hidden=(64, 64), output="linear", batch_norm=False)
    draws = ((torch.randint(len(Y), (b,)), 2 * torch.rand(b, 8) - 1) for _ in range(steps))
    train(G, f, fs.SinkhornLoss.matched_to(noise), Y, draws)
    learnt = G(G.latent(1000, Stream(b"public")), torch.zeros(1000, dtype=torch.int64)).detach()
    _, axes = plt.subplots(1, 3, figsize=(9, 3), sharex=True, sharey=True, layout="constrained")
    panels = {"records": records, "privatized": Y, "learnt": learnt}
    for axis, (title, points) in zip(axes, panels.items(), strict=True):
        axis.scatter(*points[:1000].T, s=2)
        axis.set(title=title, aspect="equal", xlim=(-3, 3), ylim=(-2.5, 3.5))
    plt.savefig(picture)
    print(f"ε = {noise.epsilon:g} of every record, to everybody; {picture}")


if __name__ == "__main__":
    main()
