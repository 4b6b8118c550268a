"""OAK (Mohan et al., ICML 2024): a query attends to the metadata items that it is predicted."""
