"""MOGIC's tables from measured runs, as a section of training/measured/README.md."""
