"""Recipes that were tuned on, or published for, one data set: the record of what was measured."""
