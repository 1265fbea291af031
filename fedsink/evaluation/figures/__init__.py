"""Figures of an evaluation, one a module: accuracies, distances, and looks of the pictures."""
