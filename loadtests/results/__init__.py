"""What becomes of the measurements: goals, a table with JSON beside it, a plot."""
