"""Turns what a service has learned into a data set: its bundle's rows plus its label log."""
