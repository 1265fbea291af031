"""Configuration files that Hydra reads after fedsink's own."""
