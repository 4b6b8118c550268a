"""`python -m training data`: write and describe data sets."""
