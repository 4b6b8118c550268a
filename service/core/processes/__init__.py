"""Child processes: how they are started, their priority and their memory."""
