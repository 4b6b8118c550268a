"""A service under mixed load for half an hour, with a snapshot, a reload and a kill in between."""
