"""`keymatch data`: write and describe data sets."""
