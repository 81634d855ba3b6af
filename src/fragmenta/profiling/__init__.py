"""Where time goes: what workers record, timelines, and what follows from them."""
