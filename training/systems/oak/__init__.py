"""OAK (Mohan et al., ICML 2024): a query attends to metadata items that are predicted for it."""
