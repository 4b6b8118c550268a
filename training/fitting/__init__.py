"""`fit`: tries what pays on a data set within a given time, and keeps the best."""
