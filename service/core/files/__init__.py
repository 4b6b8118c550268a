"""Files and folders that are written atomically and verified on reading."""
