"""Source in Python, as `explain` and `lint` read and edit it, without anything of these two."""
