"""DP-Sinkhorn: clients return clipped and noised gradients of the generated images."""
