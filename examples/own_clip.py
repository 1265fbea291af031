"""A clip of your own in a federation: automatic clipping (Bu et al. 2023, AUTO-S).

    python examples/own_clip.py     # scikit-learn's digits, a minute

g ↦ Δ·g/(‖g‖ + γ) gives every record nearly the same weight, so that Δ needs no tuning. Privacy.json
names the class, and says that the guarantee rests on its word; nodes refuse it.
"""

from sklearn.datasets import load_digits
from torch.nn.functional import interpolate
from torchvision.utils import save_image

import fedsink as fs


class Automatic(fs.RecordClip):
    """g ↦ Δ·g/(‖g‖ + γ) with γ = 0.01; fedsink clips to Δ afterwards in any case."""

    name = "automatic"

    def transform(self, gradients):
        """Returns the gradients of K records, (K, N); no row may know of another."""
        return self.bound * gradients / (gradients.norm(dim=1, keepdim=True) + 0.01)


def main(folder=None, rounds=200):
    fs.attack_clip(Automatic(1.0))  # looks for gradients with which the clip breaks its promise

    digits = load_digits()
    federation = fs.Federation(
        digits.images / 16, digits.target, clients=10, classes=10, nominal_records=1797,
        engine="local",
    )  # fmt: skip
    plan = fs.PrivacyPlan.solve(rate=0.2, clip=Automatic(1.0), rounds=rounds, eps=10, delta=1e-5)
    run = federation.fit(fs.DPSinkhorn("dct_mlp", plan), folder)
    print(f"ε = {run.privacy['epsilon']:.2f} by {run.privacy['clip_promised_by']}")
    pictures, _ = run.sample(100, balanced=True)
    save_image(interpolate(pictures, scale_factor=6), run.folder / "pictures.png", nrow=10)


if __name__ == "__main__":
    main()
