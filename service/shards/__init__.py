"""A divided memory over several processes and machines: shards, and how their front asks them."""
