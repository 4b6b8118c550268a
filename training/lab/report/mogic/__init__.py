"""MOGIC's tables from measured runs, as a section of training/lab/measured/README.md."""
