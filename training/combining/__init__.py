"""Several finished runs made into one: by their scores (`mix`), or by their weights (`average`)."""
