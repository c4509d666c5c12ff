"""Common parts of structures: names, parameters, members, parts, checks of arguments."""
