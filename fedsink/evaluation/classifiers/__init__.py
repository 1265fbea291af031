"""Classifiers that are trained on generated or real images, one kind a module."""
