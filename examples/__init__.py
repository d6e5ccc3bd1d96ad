"""Examples that tests run: methods and attacks of one's own."""
