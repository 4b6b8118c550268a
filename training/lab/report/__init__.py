"""Compares scored runs and peers: `keymatch lab report`.

runs.py       folders of results -> runs by data set, checked against each other
tables.py     a table, and the tables of one data set: figures, several seeds, paired t-tests
orderings.py  the RAE-XMC paper's orderings of systems, and whether they hold here
page.py       the report as HTML, `page.html`, and its main tables as Markdown
"""
