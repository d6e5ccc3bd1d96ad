"""Federations on many machines: Flower carries the same bytes of `Client` and `Server`.

roster    what all parties agree on: one file that every party holds
keys      secrets of a site and of the server
enrol     from the cards of sites to the roster
parties   what a party makes of a roster and its folders: records, proxy samples, parts of the run
preflight checks of files, machine and connection, by all parties
envelope  one push and one answer, as bytes
site      a site's process
loop      the server's rounds over any transport
recovery  records from which a server starts again
serve     Flower's processes around the server
flower    the adapter to Flower
commands  the command line
app       the configuration that `flwr run` takes

Only `flower` needs the extra: pip install "secure-fd[flower]".
"""
