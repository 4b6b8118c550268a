"""IRENE's second stage: system, combiner and associated labels."""
