"""Messages on the wire: the only vocabulary that clients and server share.

A request asks in public terms; a reply holds privatized values and nothing else. A
method's messages stand in the module of its name. Flower is imported when a message is packed:
requests can be made and answered where it is not installed. The names here are those that a
request of one's own needs; their types stand in `__init__.pyi`.
"""

from fedsink.registry import loaded_on_use

__getattr__ = loaded_on_use(
    __name__, {"requests": "CentralRequest Packable check_matrix check_rows run_name table"}
)
