"""Files of a trained encoder and of its run."""
