"""MOGIC (section 3.3): an oracle that reads metadata guides the training of another system."""
