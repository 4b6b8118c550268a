"""Data sets in the public LF-XMC layout, in its JSON and its sparse text form."""

from training.datasets.lf_xmc.folder import LAYOUTS, Layout, detect_layout, read, write

__all__ = ["LAYOUTS", "Layout", "detect_layout", "read", "write"]
