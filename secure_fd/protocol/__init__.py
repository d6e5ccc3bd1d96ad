"""One round between a client and the server, without a transport."""
