"""training/lab/measured/README.md: the committed results of all systems as Markdown tables."""
