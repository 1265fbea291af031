"""Identifiers of users and names of records as numbers, and the list of users that take part.

A number depends only on its name, so whatever is dealt by number stays when other users or records
come or go.
"""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

from fedsink.errors import DataError


def number_of(name: str) -> int:
    """Returns a number in [0, 2⁶³) for a name: the leading bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def participants(path: str | Path) -> frozenset[int]:
    """Returns the numbers of the users that a CSV file marks True.

    Rows are `client id, True` or `client id, False` without a header, as Augenstein et al. (2020)
    publish their lists.

    Raises:
        DataError: the file cannot be read, a row has another form, a user is listed twice, or none
            is marked True.
    """
    path = Path(path).expanduser()
    marks: dict[str, bool] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file, skipinitialspace=True, strict=True)
            for row in rows:
                mark = row[1].strip() if len(row) == 2 else ""
                if mark not in ("True", "False"):
                    raise DataError(
                        f"Line {rows.line_num} of {path} is not `client id, True` or `client id, "
                        "False`; correct it (there is no header)."
                    )
                if row[0].strip() in marks:
                    raise DataError(
                        f"Line {rows.line_num} of {path} lists a user for the second time; remove "
                        "one of the two lines."
                    )
                marks[row[0].strip()] = mark == "True"
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path.absolute()} cannot be read as a CSV file of users ({error}); correct "
            "data.clients_file."
        ) from error
    if not any(marks.values()):
        raise DataError(f"{path} marks no user True; correct data.clients_file.")
    return frozenset(number_of(user) for user, chosen in marks.items() if chosen)
