"""Messages on the wire: the only vocabulary that clients and server share.

A request asks in public terms; a reply holds privatized values and nothing else. A
method's messages stand in the module of its name. Flower is imported when a message is packed:
requests can be made and answered where it is not installed.
"""
