"""Kernels: pairwise distances and fields, in blocks, compiled where that is faster."""
