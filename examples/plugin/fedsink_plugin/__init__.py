"""A strategy and a data source for fedsink."""
