"""Ways of summing clients' vectors behind one interface."""
