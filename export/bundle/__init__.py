"""From an exported encoder and a data set to a bundle, without torch."""
