"""What the reports of all frameworks share; it knows frameworks by name only."""
