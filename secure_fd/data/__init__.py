"""Where images come from, and how clients divide them."""
