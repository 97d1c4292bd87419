"""Reports about runs, made from their run directories alone: figures, and one HTML page.

`matplotlib_plots` draws PNG figures. `html_page` writes the page: `run_facts` reads the run
directory, `curves`, `signal_charts` and `prompt_option_charts` make charts that `svg_charts` lays
out, `diff` compares texts and settings, and `text_format` formats numbers.
"""
