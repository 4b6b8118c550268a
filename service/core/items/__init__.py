"""The item memory, and the fusion of queries with the items they attend to."""
