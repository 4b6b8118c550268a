"""An exported encoder and a data set become a bundle; torch is not needed."""
