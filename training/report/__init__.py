"""What scored runs and peers say side by side, as one page: tables and figures of RAE-XMC.

runs.py          folders of results -> runs by data set, checked against each other
tables.py        Tables 1, 2, 4 and 8 from them
significance.py  paired t-tests (Table 9)
orderings.py     what the paper orders, and whether it is so here (Tables 3, 4, 5 and 8)
plots.py         Figures 2 and 3, and Table 8 as a figure
words.py         what the figures mean, in plain sentences
facts.py         what was measured, with which settings, on what
page.py          all of it as HTML, `page.html`
command.py       `python -m training report`
"""
