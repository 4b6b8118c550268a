"""Child processes of low priority."""
