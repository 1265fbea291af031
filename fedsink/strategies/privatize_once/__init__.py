"""An entropic Sinkhorn GAN on records that each client privatized once."""
