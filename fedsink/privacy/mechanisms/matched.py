"""The transport cost and regularisation that undo a mechanism's noise (Theorem 1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MatchedCost:
    """The entropic transport problem whose minimiser is the distribution before the noise.

    Theorem 1 (Reshetova, Chen, Özgür 2024): let Y ~ P_Y be the output of a channel with density
    p_M(y|x) applied to X ~ P_X. With c(x, y) = −log p_M(y|x) and unit weight on the mutual
    information, ``min_G W_{c,1}(P_{G(Z)}, P_Y)`` is attained at P_{G(Z)} = P_X, without any
    debiasing term: the entropic bias is the deconvolution. Multiplying by a constant gives

    - Laplace of scale σ:  c = ‖x − y‖₁, λ = σ.
    - Gaussian of std σ:   c = ‖x − y‖₂², λ = 2σ².

    Attributes:
        cost: ``"l1"`` for ‖x − y‖₁ or ``"squared_l2"`` for ‖x − y‖₂².
        lam: λ in cost units, the weight of KL(π ‖ μ⊗ν); it is not GeomLoss' blur.
    """

    cost: str
    lam: float
