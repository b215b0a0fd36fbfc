"""One module per family of logs; which one it is, is told from the content."""
