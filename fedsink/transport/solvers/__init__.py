"""Solvers: potentials of an entropic transport problem, native, by GeomLoss and by KeOps."""
