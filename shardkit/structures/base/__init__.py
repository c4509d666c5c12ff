"""What the structures share: names, parameters, members, parts, checks of arguments."""
