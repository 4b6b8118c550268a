"""Reports of the benchmarks: goals, a table with a JSON file, a plot."""
