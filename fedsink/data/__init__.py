"""Data: the public description, maps and views of records, and reading and dealing them out.

`fedsink.data.sources` and `fedsink.data.partition` are for code beside the private data: server
and strategies never import them. The names here load what a method of one's own needs; their types
stand in `__init__.pyi`.
"""

from fedsink.registry import loaded_on_use

__getattr__ = loaded_on_use(__name__, {"spec": "DataSpec", "views": "View view_from_dict"})
