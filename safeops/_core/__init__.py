"""What all of safeops stands on: types, dtypes, errors, operations. It imports no other part."""
