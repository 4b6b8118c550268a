"""Data sets in the public LF-XMC layout, in its JSON and its sparse text form."""

from training.datasets.lf_xmc.folder import read, write

__all__ = ["read", "write"]
