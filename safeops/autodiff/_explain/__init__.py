"""What the reports of the frameworks share; nothing here knows a framework but by name."""
