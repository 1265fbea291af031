"""Data: the public description, maps and views of records, and reading and dealing them out.

`fedsink.data.sources` and `fedsink.data.partition` are for code beside the private data: server
and strategies never import them.
"""
