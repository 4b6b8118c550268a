"""MOGIC (section 3.3): an oracle that read metadata guides the training of another system."""
