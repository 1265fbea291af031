"""A loss of your own for privatized records: the squared distance to their mean.

    python examples/own_loss.py     # scikit-learn's digits, in seconds

Y are the records behind the noise, X = f(G(z)) the generated ones, in strata by the label that
was sent. The noise has mean 0, so that the loss E‖X − E Y‖² is least where every X is the mean of
the records before the noise: it learns the mean pictures, and nothing else.
A loss sees privatized records alone, so that nothing that it does costs ε.

A package names its class by the entry point "fedsink.losses" instead, and the command knows it too:
`fedsink simulate mode=ldp strategy.loss=means`.
"""

from sklearn.datasets import load_digits
from torch.nn.functional import interpolate
from torchvision.utils import save_image

import fedsink as fs
from fedsink.strategies.losses import LOSSES, LocalLoss


class Means(LocalLoss):
    """E‖X − E Y‖², the mean over strata."""

    instead = "a distance to means"  # of Sinkhorn's iterations, so that a λ is refused

    def value(self, x, y, stream):
        """Returns the loss of generated points x and privatized records y, (S, n, D) each."""
        return (x - y.mean(1, keepdim=True)).square().sum(-1).mean()

    @classmethod
    def statement(cls, settings):
        """Returns what privacy.json says of the loss."""
        return {"cost": "squared_l2 to the mean"}


LOSSES["means"] = Means


def main(folder=None, rounds=800):
    digits = load_digits()
    federation = fs.Federation(
        digits.images / 16, digits.target, clients=10, classes=10, nominal_records=1797
    )
    run = federation.fit(fs.EntropicLDP("dct_mlp", epsilon=35, loss="means", rounds=rounds), folder)
    print(f"ε = {run.privacy['epsilon']:g}, trained by {run.privacy['training']['loss']}")
    pictures, _ = run.sample(100, balanced=True)
    save_image(interpolate(pictures, scale_factor=6), run.folder / "pictures.png", nrow=10)


if __name__ == "__main__":
    main()
