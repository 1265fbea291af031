"""What crosses the wire: the only vocabulary that clients and server share.

A request states in public terms what is asked; a reply holds privatized values and nothing else. A
method's messages stand in the module of its name. Flower is imported when a message is packed:
requests can be made and answered where it is not installed.
"""
