"""DP-Sinkhorn with clip and noise on the gradient of the generator's weights, an ablation."""
