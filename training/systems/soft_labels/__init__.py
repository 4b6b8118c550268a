"""LEVER (Buvanesh et al., ICLR 2024): a teacher's soft labels for labels with few rows."""
