"""How well a log could be forecast, on a terminal and as a page."""
