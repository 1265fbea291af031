"""What exists to repeat a paper's row, or to compare with one, on top of fedsink.

fedsink finds all of it by entry points, as those of any package (pyproject.toml lists them), and
never imports it.
"""
