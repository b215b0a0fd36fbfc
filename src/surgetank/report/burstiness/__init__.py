"""What `analyze` says, on a terminal and as a page, from one `Analysis`.

Rule: nothing is computed here but words: every number is a field of the analysis, so that terminal,
page and JSON cannot disagree.
"""
