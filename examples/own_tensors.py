"""A federated run on arrays of your own: fit, guarantee, pictures, figures on test records.

    python examples/own_tensors.py     # scikit-learn's digits, minutes

`fit` with a folder continues there when it was stopped, and gives the same run.
"""

from sklearn.datasets import load_digits
from torch.nn.functional import interpolate
from torchvision.utils import save_image

import fedsink as fs


def main(folder=None, rounds=400):
    digits = load_digits()
    images, labels = digits.images / 16, digits.target  # floats in [0, 1], or uint8
    train, test = slice(0, 1437), slice(1437, None)

    # What is public stands here: the guarantee says nothing of these numbers.
    federation = fs.Federation(
        images[train], labels[train], clients=10, classes=10, nominal_records=1437
    )
    plan = fs.PrivacyPlan.solve(
        rate=0.2, clip=fs.RecordClip(0.3), rounds=rounds, eps=10, delta=1e-5
    )
    run = federation.fit(fs.DPSinkhorn("dct_mlp", plan), folder)

    for name in ("epsilon", "delta", "unit", "adjacency", "protected"):
        print(f"{name}: {run.privacy[name]}")
    pictures, _ = run.sample(100, balanced=True)
    save_image(interpolate(pictures, scale_factor=6), run.folder / "pictures.png", nrow=10)
    print(federation.evaluate(run, images[test], labels[test], n=1000).table)


if __name__ == "__main__":
    main()
