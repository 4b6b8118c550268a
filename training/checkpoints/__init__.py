"""What a trained encoder stores on disk beside its weights."""
