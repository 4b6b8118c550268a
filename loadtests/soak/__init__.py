"""Half an hour of mixed load on a service, with a snapshot, a reload and a kill in between."""
