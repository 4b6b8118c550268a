"""Recipes as TOML, one file each, and their reader (`training.recipes.recipe`)."""
