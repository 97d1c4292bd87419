"""What runs did, told from their run directories alone: figures, and one HTML page.

`figures` draws with matplotlib; `page` writes the page from what `facts` reads, `curves` and
`charts` draw, `differences` finds and `wording` puts into words.
"""
