"""DP-Sinkhorn (Cao et al. 2021, Algorithm 1) over K clients, each of which adds its own noise.

    python examples/dp_sinkhorn.py     # scikit-learn's digits, within a minute

`fs.DPSinkhorn` computes the same (tests/examples/test_references.py). Of so few records the
published clip leaves strokes at ε = 10; a `RecordClip` gets more out of them (own_tensors.py).
"""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import interpolate
from torchvision.utils import save_image

import fedsink as fs
from fedsink.privacy import Stream
from fedsink.transport import AnnealedSolver, Mixed, append_labels


def dp_sinkhorn(G, clients, plan, key, public, *, n, lam, m=0.0, p=0.2, alpha_c=15.0, lr=1e-3):
    """Trains G: n rows a class, λ of the cost c_m, debiasing p; a client is (Y, labels)."""
    W = fs.SinkhornLoss(Mixed(m), lam=lam, debias=False, solver=AnnealedSolver())
    adam = torch.optim.Adam(G.parameters(), lr)
    labels = torch.arange(G.classes).repeat_interleave(n)
    n, extra = len(labels), int(len(labels) * p)  # the paper's n and n′
    labels = torch.cat([labels, labels[:extra]])
    rounds = zip(*(plan.steps(key, client=k) for k in range(len(clients))), strict=True)
    for t, steps in enumerate(rounds, 1):
        X = 2 * G(G.latent(len(labels), Stream(public, "train", t)), labels).flatten(1) - 1
        x = X.detach().requires_grad_()
        points = append_labels(x, labels, G.classes, alpha_c)
        # The self term −Ŵ(X[0:n], X[n′:n+n′]) of Definition 4.3, which sees no record.
        (own,) = torch.autograd.grad(-W(points[:n], points[extra:]), x)
        noised = []
        for step, (records, of_records) in zip(steps, clients, strict=True):
            gradient = own[:n]
            if len(drawn := step.sample(len(records))):  # Y, each record with probability q
                Y = append_labels(records[drawn], of_records[drawn], G.classes, alpha_c)
                gradient = gradient + torch.autograd.grad(2 * W(points[:n], Y), x)[0][:n]
            noised.append(step.release(plan.clip.clip(gradient)))  # clip(·, Δ) + 2Δσ·N(0, I)
        # The n′ extra rows have a clip of their own, and no noise.
        gradient = torch.cat([torch.stack(noised).mean(0), plan.clip.apply(own[n:])])
        adam.zero_grad()
        X.backward(gradient)  # line 9: into the weights
        adam.step()


def main(picture="dp_sinkhorn.png", T=1500, K=3):
    digits = load_digits()
    pixels, labels = torch.tensor(digits.data).float() / 8 - 1, torch.tensor(digits.target)
    shards = [(pixels[k::K], labels[k::K]) for k in range(K)]
    plan = fs.PrivacyPlan.solve(rate=0.05, clip=fs.BatchClip(1.0), rounds=T, eps=10, delta=1e-5)
    G = fs.DctMlp((1, 8, 8), classes=10, per_class_first_layer=True)
    dp_sinkhorn(G, shards, plan, fs.NoiseKey.secret(), b"public", n=2, lam=2.0)
    z, of_rows = G.latent(100, Stream(b"public", "picture")), torch.arange(10).repeat(10)
    save_image(interpolate(G(z, of_rows), scale_factor=6), picture, nrow=10)
    print(f"ε = {plan.epsilon():.2f} at δ = {plan.delta:g} of a record; {picture}")


if __name__ == "__main__":
    main()
