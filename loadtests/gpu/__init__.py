"""What `device = "cuda"` takes and gives: encoding, searching, and the whole service."""
