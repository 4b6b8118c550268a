"""The words of texts: which rows contain a word, and what a misspelled query may mean."""
