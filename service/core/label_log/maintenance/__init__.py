"""What keeps a label log in order: verifying it, cutting its beginning, saving what is whole."""
