"""The item memory, and the fusion of queries with the items that they attend to."""
