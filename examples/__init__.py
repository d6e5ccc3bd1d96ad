"""Examples that tests run: user-supplied methods, attacks and trainers."""
