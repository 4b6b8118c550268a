"""The commands `score` and `mix`, and their parts."""
