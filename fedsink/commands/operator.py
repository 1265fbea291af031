"""`fedsink operator`: the key that a server signs its requests with, and its public half."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedsink.commands.command_keys import parse
from fedsink.errors import ConfigError

HELP = """Usage: fedsink operator [key=FILE]

Prints the public half of the key that signs a deployment's requests, as the owners of nodes write
it into their policies. Where there is no key it is made (ed25519, PEM, mode 0600).

  key  the file; left out: operator.key in the server's folder ($FEDSINK_STATE), where fedsink
       deploy looks for it, on the SuperLink's machine

Example: fedsink operator"""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Makes the key if there is none, and prints its public half."""
    keys = parse(arguments, {"key": Path})

    from fedsink.deployment.server_folder import (
        KEY_FILE,
        operator_key,
        server_home,
    )
    from fedsink.protocol.signing import make_private_key, shown_key

    path = keys.get("key", server_home() / KEY_FILE).expanduser()
    make_private_key(path)
    key = operator_key(path)
    if key is None:
        raise ConfigError(f"{path} has vanished.")
    print(shown_key(key.public_key().public_bytes_raw()))
    return 0
