"""`fit`: tries several ways of training within a given time, and keeps the best."""
