"""The tables and figures of the Selective-FD paper, from cells on one engine."""
