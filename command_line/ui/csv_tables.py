"""Tables as CSV, for spreadsheets and programs."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from storage.texts import storable

_BEGINS_A_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
"""What spreadsheets take for the beginning of a formula."""


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows under a heading, as RFC 4180 has them. A text that a spreadsheet would compute gets an apostrophe
    before it, with which it is a text there too; numbers stay numbers."""
    written = io.StringIO()
    table = csv.writer(written)
    table.writerow(map(_cell, columns))
    table.writerows([_cell(row[column]) for column in columns] for row in rows)
    return storable(written.getvalue())


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case datetime():
            return value.isoformat()
        case str():
            return f"'{value}" if value.startswith(_BEGINS_A_FORMULA) else value
    return json.dumps(value, ensure_ascii=False)
