"""The command line: the demonstration, recipes, and `explain` for a file."""
