"""The operations: combinators and slices, then the families made of them."""
