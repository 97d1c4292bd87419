"""Reports about runs, made from their run directories alone: pictures, and one HTML page.

`html_page` writes the page. `run_facts` reads a run directory, `comparison` compares several,
`charts` makes charts as data and `plots` draws them, `findings` says what the numbers mean, and
`text_format` formats numbers and tables.
"""
