"""One outside thing each: engines, files, processes."""
