"""How `explain` finds the line in a program of JAX."""
