"""Other ways to answer the same queries, measured beside Keymatch in one run."""
