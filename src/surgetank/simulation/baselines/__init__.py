"""Other people's autoscalers, to compare with: each a rule of its own constants and source."""
