"""Recipes tuned on, or published for, one data set; they document what was measured."""
