"""Reports about runs, made from their run directories alone: figures, and one HTML page.

`matplotlib_plots` draws PNG figures and the charts of a page. `html_page` writes the page:
`run_facts` reads the run directory, `charts` makes charts as data, `findings` says what the numbers
mean, `diff` compares texts and settings, and `text_format` formats numbers.
"""
