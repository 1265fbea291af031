"""Engines: the same apps in process, on Ray, or under stock Flower."""
