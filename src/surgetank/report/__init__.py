"""Tables, charts and self-contained HTML: one look for every report.

`numbers` writes figures, `charts` says what is drawn, `page` makes one HTML file of it, `terminal`
draws on a terminal, `files` writes reports whole. `static/` holds the palette, the theme switch and
the chart library, which the live page serves as well.
"""
