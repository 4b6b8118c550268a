"""Recipes as TOML, one file each, and what reads them (`training.recipes.recipe`)."""
