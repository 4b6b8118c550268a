"""Experiments on trained encoders: sweeps, cost curves, novel labels, replayed traffic."""
