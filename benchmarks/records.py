"""Files of what was measured, with a record a line, so that a change shows as a line."""

import json


def write(file, data, depth):
    """Write data, whose records are this deep within dictionaries."""
    file.write_text(text(data, depth) + "\n")


def text(data, depth):
    """Return JSON: dictionaries down to a depth have a line for each entry."""
    if not depth or not isinstance(data, dict):
        return json.dumps(data, separators=(",", ":"))
    entries = (f"{json.dumps(name)}:{text(entry, depth - 1)}" for name, entry in data.items())
    return "{\n" + ",\n".join(entries) + "\n}"
