"""Other ways to answer the same queries, measured next to Keymatch in one run."""
