"""Recipes (TOML) and the code that reads them."""
