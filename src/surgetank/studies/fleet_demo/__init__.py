"""The demo's second act: a fleet that follows a burst, beside a plain proxy of a fixed size."""
