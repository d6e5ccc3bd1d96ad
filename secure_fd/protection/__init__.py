"""What stands between a client's answers and the wire: nothing, label privacy, record privacy."""
